/* SPDX-License-Identifier: Apache-2.0
 * The header from C11: layout, defaults, one small selection, one error message. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "keysieve/keysieve.h"

#define EXPECT(condition)                                             \
  do {                                                                \
    if (!(condition)) {                                               \
      printf("%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      return 1;                                                       \
    }                                                                 \
  } while (0)

static keysieve_tensor matrix(void* data, int32_t dtype, int64_t rows, int64_t columns) {
  keysieve_tensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = 2;
  tensor.shape[0] = rows;
  tensor.shape[1] = columns;
  tensor.stride[0] = columns;
  tensor.stride[1] = 1;
  return tensor;
}

int main(void) {
  EXPECT(sizeof(keysieve_tensor) == 80);
  EXPECT(sizeof(keysieve_problem) == 144);
  EXPECT(sizeof(keysieve_options) == 40);
  EXPECT(keysieve_version() == KEYSIEVE_VERSION_MAJOR * 10000 + KEYSIEVE_VERSION_MINOR * 100 + KEYSIEVE_VERSION_PATCH);
  EXPECT(strlen(keysieve_version_string()) >= 5);
  EXPECT(keysieve_backend_count() >= 1);

  float scores[2][5] = {{1.0F, 9.0F, -2.0F, 9.0F, 3.0F}, {0.0F, -0.0F, 0.0F, NAN, -INFINITY}};
  int32_t indices[2][3];
  keysieve_problem problem;
  memset(&problem, 0, sizeof(problem));
  problem.struct_size = sizeof(problem);
  problem.op = KEYSIEVE_SELECT;
  problem.num_rows = 2;
  problem.num_keys = 5;
  problem.topk = 3;
  EXPECT(keysieve_supported(&problem, NULL) == KEYSIEVE_OK);

  size_t min_bytes = 1;
  static unsigned char workspace[1 << 22];
  EXPECT(keysieve_workspace_size(&problem, NULL, &min_bytes, NULL) == KEYSIEVE_OK);
  EXPECT(min_bytes <= sizeof(workspace));

  keysieve_tensors tensors;
  memset(&tensors, 0, sizeof(tensors));
  tensors.struct_size = sizeof(tensors);
  tensors.scores = matrix(scores, KEYSIEVE_F32, 2, 5);
  tensors.indices = matrix(indices, KEYSIEVE_I32, 2, 3);
  tensors.workspace = workspace;
  tensors.workspace_bytes = sizeof(workspace);
  EXPECT(keysieve_run(&problem, NULL, &tensors, NULL) == KEYSIEVE_OK);
  EXPECT(indices[0][0] == 1 && indices[0][1] == 3 && indices[0][2] == 4);
  EXPECT(indices[1][0] == 0 && indices[1][1] == 1 && indices[1][2] == 2);

  tensors.indices.shape[1] = 2;
  EXPECT(keysieve_run(&problem, NULL, &tensors, NULL) == KEYSIEVE_INVALID_ARGUMENT);
  EXPECT(strcmp(keysieve_last_message(), "indices.shape is [2, 2], expected [2, 3]") == 0);
  return 0;
}
