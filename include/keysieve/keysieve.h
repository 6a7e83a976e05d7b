/* SPDX-License-Identifier: Apache-2.0
 *
 * keysieve: exact top-K selection of keys by a lightning indexer, in one pass.
 *
 *     score[t,n] = k_scale[n] * sum_h weights[t,h] * relu( sum_d q[t,h,d] * k[n,d] )
 *
 * (the indexer of DeepSeek-V3.2, arXiv 2512.02556, equation 1, with every query-side factor folded
 * into `weights`).  For each query row t the K best keys of [row_start[t], row_end[t]) are returned.
 * docs/contract.md is the whole definition; this header names its parts.
 *
 * Axes: t query row (T), h indexer head (H), d channel (D), n key (N), k output slot (K); B requests,
 * P pages of a block table.
 *
 * Rules of this interface
 *  - Nothing aborts, prints or throws.  Every function returns a keysieve_status; the text that goes
 *    with the last failure on this thread is keysieve_last_message().
 *  - Every struct starts with `struct_size`.  Zero the struct, set struct_size to sizeof(it), then set
 *    what you need: 0 is the default of every field.  A library that is newer than the caller reads the
 *    missing fields as 0; a caller that is newer than the library gets an error if it set any field that
 *    the library does not know.
 *  - keysieve_run allocates no device memory, does not synchronise and keeps no state.  On CUDA all work
 *    goes to `stream`, and the call can be captured in a CUDA graph.
 *  - Calls from several threads and on several streams are independent as long as their workspaces and
 *    outputs are.
 */
#ifndef KEYSIEVE_KEYSIEVE_H_
#define KEYSIEVE_KEYSIEVE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(KEYSIEVE_STATIC)
#define KEYSIEVE_API
#elif defined(_WIN32)
#define KEYSIEVE_API __declspec(dllimport)
#else
#define KEYSIEVE_API __attribute__((visibility("default")))
#endif

#define KEYSIEVE_VERSION_MAJOR 0
#define KEYSIEVE_VERSION_MINOR 1
#define KEYSIEVE_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Enumerations.  They are stored as int32_t, so that a struct has one layout in every language. ---- */

typedef enum keysieve_status {
  KEYSIEVE_OK = 0,
  KEYSIEVE_INVALID_ARGUMENT = 1,    /* an argument breaks the contract; the message names it */
  KEYSIEVE_UNSUPPORTED = 2,         /* legal, but this backend has no kernel for it; the message lists what it has */
  KEYSIEVE_WORKSPACE_TOO_SMALL = 3, /* the message names the size given and the minimum */
  KEYSIEVE_UNAVAILABLE = 4,         /* no such backend, or it cannot run on this machine; the message says why */
  KEYSIEVE_DEVICE_ERROR = 5,        /* the CUDA runtime refused a call; the message holds its error */
  KEYSIEVE_INTERNAL = 6             /* a fault of keysieve itself */
} keysieve_status;

enum keysieve_dtype {
  KEYSIEVE_DTYPE_NONE = 0,
  KEYSIEVE_E4M3 = 1,  /* OCP FP8 e4m3fn, 1 byte: NaN 0x7F and 0xFF, no infinity */
  KEYSIEVE_BF16 = 2,  /* bfloat16, 2 bytes */
  KEYSIEVE_MXFP4 = 3, /* OCP MXFP4: two e2m1 values a byte (even d in the low nibble), one e8m0 scale for 32 values */
  KEYSIEVE_F32 = 4,
  KEYSIEVE_U8 = 5,
  KEYSIEVE_I32 = 6,
  KEYSIEVE_U64 = 7
};

enum keysieve_device_type { KEYSIEVE_CPU = 0, KEYSIEVE_CUDA = 1 };

enum keysieve_op {
  KEYSIEVE_SCORE_SELECT = 0, /* q, k, weights -> indices; the [T,N] scores are never stored */
  KEYSIEVE_SCORE = 1,        /* q, k, weights -> scores */
  KEYSIEVE_SELECT = 2        /* scores -> indices */
};

enum keysieve_key_layout {
  KEYSIEVE_KEYS_CONTIGUOUS = 0, /* k [N,D], k_scale [N] */
  KEYSIEVE_KEYS_PAGED = 1       /* pages of 64 keys and a block table */
};

enum keysieve_score_layout {
  KEYSIEVE_SCORES_FULL = 0,   /* [T,N]: column n holds key n; -inf outside the row's range */
  KEYSIEVE_SCORES_COMPACT = 1 /* [T,W]: column n - row_start holds key n; -inf past the row's width */
};

/* What an index means.  Row-relative indices count from the row's clamped row_start. */
enum keysieve_index_space {
  KEYSIEVE_INDEX_ROW = 0,      /* row-relative */
  KEYSIEVE_INDEX_ABSOLUTE = 1, /* column of k; position in the request when keys are paged */
  KEYSIEVE_INDEX_OFFSET = 2,   /* row-relative + out_offset[t] */
  KEYSIEVE_INDEX_SLOT = 3      /* table[request][p / size] * size + p % size, see slot_table below */
};

enum keysieve_order {
  KEYSIEVE_ORDER_ASCENDING = 0, /* by key position */
  KEYSIEVE_ORDER_ANY = 1,       /* the same set; the order may change from run to run */
  KEYSIEVE_ORDER_SCORE = 2      /* best first, equal scores by lower position, NaN last */
};

enum keysieve_candidates {
  KEYSIEVE_CANDIDATES_NONE = 0,
  KEYSIEVE_CANDIDATES_PUBLISH = 1, /* also write each row's best blocks of keys */
  KEYSIEVE_CANDIDATES_CONSUME = 2  /* only keys of the listed blocks may be picked */
};

/* Limits that hold for every backend. */
#define KEYSIEVE_MAX_TOPK 2048         /* score_select */
#define KEYSIEVE_MAX_TOPK_SELECT 16384 /* select */
#define KEYSIEVE_MAX_CAND_COUNT 4096
#define KEYSIEVE_PAGE_SIZE 64 /* keys a page */
#define KEYSIEVE_MAX_RANK 4
#define KEYSIEVE_NUM_STATS 8

/* ---- Structs ---- */

/* A strided view of the caller's memory.  rank 0 means "not given".  Strides count elements. */
typedef struct keysieve_tensor {
  void* data;
  int32_t dtype; /* enum keysieve_dtype */
  int32_t rank;
  int64_t shape[KEYSIEVE_MAX_RANK];
  int64_t stride[KEYSIEVE_MAX_RANK];
} keysieve_tensor;

/* What is to be computed: capacities and types, no pointers.  Enough to ask keysieve_supported and
 * keysieve_workspace_size. */
typedef struct keysieve_problem {
  uint32_t struct_size;
  int32_t op;           /* enum keysieve_op */
  int32_t device_type;  /* enum keysieve_device_type: where every tensor lives */
  int32_t device_index; /* CUDA ordinal; 0 on a CPU */

  int64_t num_rows;  /* T >= 0 */
  int64_t num_heads; /* H >= 1; ignored by select */
  int64_t head_dim;  /* D >= 1; ignored by select */
  int64_t num_keys;  /* N >= 0; with paged keys the most positions a request can have, at most P * 64 */
  int64_t topk;      /* K: 1..2048, select 1..16384; ignored by score */

  int32_t q_dtype; /* (q, k) is (E4M3, E4M3), (BF16, BF16) or (E4M3, MXFP4); ignored by select */
  int32_t k_dtype;
  int32_t score_dtype; /* F32 (also 0) or BF16: type of score's output and of select's input */
  int32_t key_layout;  /* enum keysieve_key_layout */

  int64_t num_pages;         /* pages in the pool; paged keys only */
  int64_t num_requests;      /* B: rows of block_table or slot_table */
  int64_t pages_per_request; /* P: columns of block_table or slot_table */
  int64_t next_n;            /* rows a request when row_request is absent: request = t / next_n; 0 means 1 */

  int32_t score_layout; /* enum keysieve_score_layout, for score and select */
  int32_t index_space;  /* enum keysieve_index_space */
  int64_t score_width;  /* W: columns of compact scores */

  int32_t order;          /* enum keysieve_order */
  int32_t slot_page_size; /* entries a page of slot_table: a power of two; 0: slots come from block_table (64) */

  int32_t candidates; /* enum keysieve_candidates; not with score */
  int32_t cand_block; /* keys a block: 8 or 16 */
  int64_t cand_count; /* 1..4096 blocks a row */
} keysieve_problem;

/* How it is to be computed.  A null pointer stands for all defaults.  No option changes a result. */
typedef struct keysieve_options {
  uint32_t struct_size;
  int32_t threads;      /* CPU: 0 = as many as the machine has */
  const char* backend;  /* a name from keysieve_backend_info; null = the first that supports the problem */
  const char* config;   /* kernel configuration, as keysieve_explain prints it; null = chosen by the library */
  int32_t sm_limit;     /* CUDA: use at most this many multiprocessors; 0 = all */
  int32_t force_first;  /* reserved, must be 0: first keys of a row that are always picked */
  int32_t force_last;   /* reserved, must be 0: last keys of a row that are always picked */
  int32_t launch_flags; /* CUDA: KEYSIEVE_LAUNCH_* */
} keysieve_options;

enum keysieve_launch_flags {
  KEYSIEVE_LAUNCH_DEFAULT = 0,
  KEYSIEVE_LAUNCH_PDL = 1 /* programmatic dependent launch: overlap this call's start with the kernel before it */
};

/* The tensors of one call.  Innermost strides are 1 for q, k, weights, scores and indices; outer strides
 * are free.  No output may overlap any other tensor or the workspace. */
typedef struct keysieve_tensors {
  uint32_t struct_size;
  uint32_t reserved;

  /* inputs of score and score_select */
  keysieve_tensor q;       /* [T,H,D] or [B,next_n,H,D] of q_dtype */
  keysieve_tensor k;       /* E4M3, BF16: [N,D].  MXFP4: U8 [N,D/2].  Paged: U8 [num_pages, page bytes], where a page
                            * holds E4M3: 64*D key bytes, then 64 f32 scales; MXFP4: 64*D/2 key bytes, then
                            * 64*(D/32) scale bytes; BF16: 64*2*D bytes */
  keysieve_tensor k_scale; /* E4M3: F32 [N].  MXFP4: U8 [N,D/32], 2^(byte-127), 255 = NaN.  BF16 or paged: absent */
  keysieve_tensor weights; /* F32 [T,H] or [B,next_n,H]; a T stride of 0 shares one row */

  /* input of select, output of score: score_dtype [T,N] (full) or [T,W] (compact) */
  keysieve_tensor scores;

  /* rows */
  keysieve_tensor row_start; /* I32 [T] or [B,next_n]; absent: 0 */
  keysieve_tensor
      row_end; /* I32 [T] or [B,next_n]; absent: N.  Both are clamped to [0,N]; row_end <= row_start is an empty row */
  keysieve_tensor row_request; /* I32 [T]; absent: t / next_n */
  keysieve_tensor block_table; /* I32 [B,P]: page of positions 64*i .. 64*i+63 of a request */
  keysieve_tensor out_offset;  /* I32 [T], KEYSIEVE_INDEX_OFFSET */
  keysieve_tensor
      slot_table; /* I32 [B,P], KEYSIEVE_INDEX_SLOT: p is the row-relative index with contiguous keys, the
                   * position in the request with paged keys (select: as key_layout says).  Absent: block_table */

  /* candidate blocks: block j of a row is its keys row_start + j*cand_block ... */
  keysieve_tensor cand_in;  /* I32 [T,cand_count], consume: ascending and unique, -1 ends the list */
  keysieve_tensor cand_out; /* I32 [T,cand_count], publish: ascending, then -1 */

  /* outputs of select and score_select */
  keysieve_tensor indices;     /* I32 [T,K]: min(K, keys of the row) keys, then -1 */
  keysieve_tensor top_scores;  /* F32 [T,K], optional: score of each index, -inf where the index is -1 */
  keysieve_tensor out_count;   /* I32 [T], optional: keys selected in the row */
  keysieve_tensor row_indices; /* I32 [T,K], optional: the same keys as row-relative indices */
  keysieve_tensor stats; /* U64 [8], optional, device memory; the call adds: [0] rows repaired, [1] candidates kept,
                          * [2] rescans; the rest is reserved */

  void* workspace; /* any alignment; its content is undefined before and after a call */
  size_t workspace_bytes;
} keysieve_tensors;

typedef struct keysieve_backend_info {
  uint32_t struct_size;
  int32_t device_type;
  int32_t available; /* 1: can run on this machine */
  int32_t reserved;
  char name[32];
  char detail[224]; /* instruction set or devices; if not available, why */
} keysieve_backend_info;

/* ---- Functions ---- */

/* MAJOR * 10000 + MINOR * 100 + PATCH of the library, and the same as text. */
KEYSIEVE_API int32_t keysieve_version(void);
KEYSIEVE_API const char* keysieve_version_string(void);

/* Name of a status, such as "invalid argument".  Never null. */
KEYSIEVE_API const char* keysieve_status_string(int32_t status);

/* What went wrong in the last call on this thread that did not return KEYSIEVE_OK: which argument, what it
 * was, what was expected.  Empty if there was none.  Valid until the next call on this thread. */
KEYSIEVE_API const char* keysieve_last_message(void);

/* Backends in order of preference.  keysieve_get_backend fills *info for index 0 .. count-1. */
KEYSIEVE_API int32_t keysieve_backend_count(void);
KEYSIEVE_API keysieve_status keysieve_get_backend(int32_t index, keysieve_backend_info* info);

/* KEYSIEVE_OK if keysieve_run would accept this problem; otherwise the status it would return. */
KEYSIEVE_API keysieve_status keysieve_supported(const keysieve_problem* problem, const keysieve_options* options);

/* Bytes of workspace: *min_bytes is needed, *preferred_bytes gives the best speed.  They depend on the
 * problem and the options alone, never on the values of row_start, row_end or a table.  Either may be null. */
KEYSIEVE_API keysieve_status keysieve_workspace_size(const keysieve_problem* problem, const keysieve_options* options,
                                                     size_t* min_bytes, size_t* preferred_bytes);

/* Writes which backend and kernel configuration keysieve_run would take, as text, cut to `capacity` bytes. */
KEYSIEVE_API keysieve_status keysieve_explain(const keysieve_problem* problem, const keysieve_options* options,
                                              char* text, size_t capacity);

/* Runs the problem on `tensors`.  `stream` is a cudaStream_t, or null for the default stream; it must be null
 * on a CPU, where the call returns when the result is there. */
KEYSIEVE_API keysieve_status keysieve_run(const keysieve_problem* problem, const keysieve_options* options,
                                          const keysieve_tensors* tensors, void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KEYSIEVE_KEYSIEVE_H_ */
