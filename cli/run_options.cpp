// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "verbs.hpp"

namespace keysieve::cli {
namespace {

const std::map<std::string, int32_t>& index_spaces() {
  static const std::map<std::string, int32_t> kNames = {{"row", KEYSIEVE_INDEX_ROW},
                                                        {"absolute", KEYSIEVE_INDEX_ABSOLUTE},
                                                        {"offset", KEYSIEVE_INDEX_OFFSET},
                                                        {"slot", KEYSIEVE_INDEX_SLOT}};
  return kNames;
}

const std::map<std::string, int32_t>& orders() {
  static const std::map<std::string, int32_t> kNames = {
      {"ascending", KEYSIEVE_ORDER_ASCENDING}, {"any", KEYSIEVE_ORDER_ANY}, {"score", KEYSIEVE_ORDER_SCORE}};
  return kNames;
}

const char* name_of(const std::map<std::string, int32_t>& names, int32_t value) {
  for (const auto& [name, number] : names) {
    if (number == value) {
      return name.c_str();
    }
  }
  return "unknown";
}

int32_t value_of(const std::map<std::string, int32_t>& names, const std::string& name) {
  const auto found = names.find(name);
  return found == names.end() ? -1 : found->second;
}

}  // namespace

void add_run_options(Verb* verb, RunOptions* options) {
  verb->number("-k,--topk", &options->topk, "Keys to select in each row, 1 to 2048", 1, KEYSIEVE_MAX_TOPK);
  verb->text("--backend", &options->backend, "cuda, cpu or reference; default: the first that can do it");
  verb->number("--threads", &options->threads, "CPU threads; 0: all");
  verb->number("--device", &options->device_index, "CUDA device");
  verb->text("--config", &options->config, "Kernel configuration; default: the library's choice");
  verb->choice("--index-space", &options->index_space, index_spaces(),
               "What an index means: row, absolute, offset or slot");
  verb->choice("--order", &options->order, orders(), "Order of a row's keys: ascending, any or score");
}

const char* index_space_name(int32_t index_space) {
  return name_of(index_spaces(), index_space);
}
const char* order_name(int32_t order) {
  return name_of(orders(), order);
}
int32_t index_space_of(const std::string& name) {
  return value_of(index_spaces(), name);
}
int32_t order_of(const std::string& name) {
  return value_of(orders(), name);
}

}  // namespace keysieve::cli
