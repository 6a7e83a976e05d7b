// SPDX-License-Identifier: Apache-2.0
// keysieve gen: writes a synthetic replay file.
#include <fmt/format.h>
#include <map>

#include "failure.hpp"
#include "output.hpp"
#include "synthetic.hpp"
#include "verbs.hpp"

namespace keysieve::cli {
namespace {

struct GenArguments {
  std::string path;
  SyntheticSpec spec;
  bool json = false;
};

std::map<std::string, DataKind> data_kinds() {
  std::map<std::string, DataKind> names;
  for (int kind = 0; kind <= static_cast<int>(DataKind::kNanInf); ++kind) {
    names[data_kind_name(static_cast<DataKind>(kind))] = static_cast<DataKind>(kind);
  }
  return names;
}

std::map<std::string, RowKind> row_kinds() {
  std::map<std::string, RowKind> names;
  for (int kind = 0; kind <= static_cast<int>(RowKind::kRagged); ++kind) {
    names[row_kind_name(static_cast<RowKind>(kind))] = static_cast<RowKind>(kind);
  }
  return names;
}

void generate(const GenArguments& arguments) {
  const SyntheticSpec& spec = arguments.spec;
  const double elements =
      static_cast<double>(spec.num_rows) * static_cast<double>(spec.num_heads) * static_cast<double>(spec.head_dim) +
      static_cast<double>(spec.num_keys) * static_cast<double>(spec.head_dim);
  if (elements > 1e12) {
    throw Failure(kExitBadInput, "gen", fmt::format("{:.3g} elements are too many for a file", elements));
  }
  const Synthetic synthetic(spec);
  const Status status = write_safetensors(arguments.path, synthetic.tensors(), synthetic.metadata());
  if (!status.ok()) {
    throw Failure(kExitFault, "gen", status.message());
  }
  size_t bytes = 0;
  for (const FileTensor& tensor : synthetic.tensors()) {
    bytes += tensor.bytes;
  }
  if (arguments.json) {
    print(Json{{"file", arguments.path},
               {"data", data_kind_name(spec.data)},
               {"rows", row_kind_name(spec.rows)},
               {"dtype", dtype_option_name(spec.k_dtype)},
               {"T", spec.num_rows},
               {"N", spec.num_keys},
               {"H", spec.num_heads},
               {"D", spec.head_dim},
               {"seed", spec.seed},
               {"tensor_bytes", bytes}});
  } else {
    print(fmt::format("{}: {} queries x {} keys, {} heads of {}, {}, {} data, {} rows, seed {}, {}\n", arguments.path,
                      grouped(spec.num_rows), grouped(spec.num_keys), spec.num_heads, spec.head_dim,
                      dtype_option_name(spec.k_dtype), data_kind_name(spec.data), row_kind_name(spec.rows), spec.seed,
                      scaled(static_cast<double>(bytes), "B")));
  }
}

constexpr const char* kFooter = R"(Data:
  normal             queries, keys and weights normal
  ties               every key is one of 64
  all-equal          every key is the same
  zero-plateau       nine keys in ten score exactly 0
  all-zero           every key scores exactly 0
  low-contrast       all keys nearly equal
  sorted-ascending   scores rise with the key
  sorted-descending  scores fall with the key
  outliers           few keys, heads and weights a hundred times as large
  nan-inf            NaN keys, NaN queries, infinite scores of both signs

Rows:
  causal  row t sees keys 0 .. N - T + t
  full    every row sees every key
  ragged  any start and end; empty, inverted and overlong ranges too

Examples:
  keysieve gen normal.safetensors
  keysieve gen long.safetensors --data zero-plateau --rows 64 --keys 131072 --seed 7
  keysieve gen small.safetensors --dtype mxfp4 --ranges ragged --heads 8 --dim 64 --keys 1000)";

}  // namespace

void add_gen(CommandLine* command_line) {
  Verb verb = command_line->add_verb("gen", "Write a synthetic replay file");
  const auto arguments = std::make_shared<GenArguments>();
  SyntheticSpec& spec = arguments->spec;
  verb.required("file", &arguments->path, "File to write", "FILE");
  verb.choice("--data", &spec.data, data_kinds(), "Shape of the scores, see below");
  verb.choice("--ranges", &spec.rows, row_kinds(), "Keys of each row: causal, full or ragged");
  verb.choice("--dtype", &spec.k_dtype, {{"e4m3", KEYSIEVE_E4M3}, {"bf16", KEYSIEVE_BF16}, {"mxfp4", KEYSIEVE_MXFP4}},
              "e4m3, bf16 (queries too) or mxfp4 keys");
  verb.number("-T,--rows", &spec.num_rows, "Query rows");
  verb.number("-N,--keys", &spec.num_keys, "Keys");
  verb.number("-H,--heads", &spec.num_heads, "Heads", 1);
  verb.number("-D,--dim", &spec.head_dim, "Channels a head", 1);
  verb.seed("--seed", &spec.seed, "Same seed, same file");
  verb.flag("--json", &arguments->json, "Print JSON");
  verb.footer(kFooter);
  verb.action([arguments] {
    generate(*arguments);
    return kExitOk;
  });
}

}  // namespace keysieve::cli
