# SPDX-License-Identifier: Apache-2.0
"""A mirror of include/keysieve/keysieve.h in ctypes, and one small class over it for torch tensors.

The structs are those of the header, field for field; `check_layout` in the tests compares their sizes with the library's
own answer (a struct_size the library does not know is an error there).
"""
import ctypes

OK = 0
E4M3, BF16, MXFP4, F32, U8, I32, U64 = 1, 2, 3, 4, 5, 6, 7
CPU, CUDA = 0, 1
SCORE_SELECT, SCORE, SELECT = 0, 1, 2
CONTIGUOUS, PAGED = 0, 1
FULL, COMPACT = 0, 1
INDEX_ROW, INDEX_ABSOLUTE, INDEX_OFFSET, INDEX_SLOT = 0, 1, 2, 3
ASCENDING, ANY, BY_SCORE = 0, 1, 2
MAX_RANK = 4


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("shape", ctypes.c_int64 * MAX_RANK), ("stride", ctypes.c_int64 * MAX_RANK)]


class Problem(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("op", ctypes.c_int32), ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32),
                ("num_rows", ctypes.c_int64), ("num_heads", ctypes.c_int64), ("head_dim", ctypes.c_int64), ("num_keys", ctypes.c_int64), ("topk", ctypes.c_int64),
                ("q_dtype", ctypes.c_int32), ("k_dtype", ctypes.c_int32), ("score_dtype", ctypes.c_int32), ("key_layout", ctypes.c_int32),
                ("num_pages", ctypes.c_int64), ("num_requests", ctypes.c_int64), ("pages_per_request", ctypes.c_int64), ("next_n", ctypes.c_int64),
                ("score_layout", ctypes.c_int32), ("index_space", ctypes.c_int32), ("score_width", ctypes.c_int64),
                ("order", ctypes.c_int32), ("slot_page_size", ctypes.c_int32),
                ("candidates", ctypes.c_int32), ("cand_block", ctypes.c_int32), ("cand_count", ctypes.c_int64)]


class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("threads", ctypes.c_int32), ("backend", ctypes.c_char_p), ("config", ctypes.c_char_p),
                ("sm_limit", ctypes.c_int32), ("force_first", ctypes.c_int32), ("force_last", ctypes.c_int32), ("launch_flags", ctypes.c_int32)]


TENSOR_NAMES = ("q", "k", "k_scale", "weights", "scores", "row_start", "row_end", "row_request", "block_table", "out_offset", "slot_table",
                "cand_in", "cand_out", "indices", "top_scores", "out_count", "row_indices", "stats")


class Tensors(ctypes.Structure):
    _fields_ = ([("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32)] + [(name, Tensor) for name in TENSOR_NAMES]
                + [("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t)])


class BackendInfo(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("device_type", ctypes.c_int32), ("available", ctypes.c_int32), ("reserved", ctypes.c_int32),
                ("name", ctypes.c_char * 32), ("detail", ctypes.c_char * 224)]


class KeysieveError(RuntimeError):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def sized(struct_type, **fields):
    """A zeroed struct with struct_size set, then the given fields."""
    value = struct_type(**fields)
    value.struct_size = ctypes.sizeof(struct_type)
    return value


class Library:
    """libkeysieve.so, loaded from `path`."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.keysieve_last_message.restype = ctypes.c_char_p
        self.lib.keysieve_version_string.restype = ctypes.c_char_p
        self.lib.keysieve_status_string.restype = ctypes.c_char_p
        for name in ("keysieve_supported", "keysieve_workspace_size", "keysieve_explain", "keysieve_run", "keysieve_get_backend"):
            getattr(self.lib, name).restype = ctypes.c_int
        self.lib.keysieve_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]

    def version(self):
        return self.lib.keysieve_version_string().decode()

    def check(self, status):
        if status != OK:
            raise KeysieveError(status, f"{self.lib.keysieve_status_string(status).decode()}: {self.lib.keysieve_last_message().decode()}")

    def backends(self):
        """[(name, available, detail)] in order of preference."""
        out = []
        for i in range(self.lib.keysieve_backend_count()):
            info = sized(BackendInfo)
            self.check(self.lib.keysieve_get_backend(i, ctypes.byref(info)))
            out.append((info.name.decode(), bool(info.available), info.detail.decode()))
        return out

    def supported(self, problem, options=None):
        """None, or the reason why not."""
        status = self.lib.keysieve_supported(ctypes.byref(problem), ctypes.byref(options) if options else None)
        return None if status == OK else self.lib.keysieve_last_message().decode()

    def workspace_size(self, problem, options=None):
        """(min_bytes, preferred_bytes)"""
        least, preferred = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(self.lib.keysieve_workspace_size(ctypes.byref(problem), ctypes.byref(options) if options else None, ctypes.byref(least), ctypes.byref(preferred)))
        return least.value, preferred.value

    def explain(self, problem, options=None):
        text = ctypes.create_string_buffer(256)
        self.check(self.lib.keysieve_explain(ctypes.byref(problem), ctypes.byref(options) if options else None, text, ctypes.c_size_t(len(text))))
        return text.value.decode()


def view(tensor, dtype):
    """A keysieve_tensor over a torch tensor; absent for None."""
    out = Tensor()
    if tensor is not None:
        out.data = tensor.data_ptr()
        out.dtype = dtype
        out.rank = tensor.dim()
        for i in range(tensor.dim()):
            out.shape[i] = tensor.shape[i]
            out.stride[i] = tensor.stride(i)
    return out


class Call:
    """A problem with its tensors and workspace: everything is checked and allocated here, `run` only launches."""

    def __init__(self, library, problem, tensors, allocate_bytes, options=None):
        """tensors: {name of keysieve_tensors: (torch tensor, dtype)}; allocate_bytes(n): a device byte tensor."""
        self.library, self.problem, self.options = library, problem, options
        reason = library.supported(problem, options)
        if reason is not None:
            raise KeysieveError(-1, reason)
        self.workspace_bytes = library.workspace_size(problem, options)[1]
        self.workspace = allocate_bytes(max(1, self.workspace_bytes))
        self.kept = tensors  # the views below do not own their memory
        self.tensors = sized(Tensors, **{name: view(t, dtype) for name, (t, dtype) in tensors.items()})
        self.tensors.workspace = self.workspace.data_ptr()
        self.tensors.workspace_bytes = self.workspace_bytes
        self.variant = library.explain(problem, options)

    def run(self, stream):
        options = ctypes.byref(self.options) if self.options else None
        self.library.check(self.library.lib.keysieve_run(ctypes.byref(self.problem), options, ctypes.byref(self.tensors), stream))
