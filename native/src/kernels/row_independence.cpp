#include "kernels/row_independence.h"

#include <ggml.h>

namespace corosrv {

namespace {

// For caches of 32-bit and 16-bit floats ggml has three kernels, chosen by the number of tokens and cells. For other
// types it has one, which computes the cells of each token in order.
bool has_one_attention_kernel(ggml_type cache) { return cache != GGML_TYPE_F32 && cache != GGML_TYPE_F16; }

}  // namespace

bool is_row_independent(const ggml_tensor& node) {
  switch (node.op) {
    case GGML_OP_FLASH_ATTN_EXT:
      return has_one_attention_kernel(node.src[1]->type);

    // These move numbers.
    case GGML_OP_NONE:
    case GGML_OP_DUP:
    case GGML_OP_REPEAT:
    case GGML_OP_CONCAT:
    case GGML_OP_SET:
    case GGML_OP_CPY:
    case GGML_OP_CONT:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
    case GGML_OP_GET_ROWS:
    case GGML_OP_SET_ROWS:
    case GGML_OP_PAD:
    case GGML_OP_ROLL:
    case GGML_OP_ARANGE:
    case GGML_OP_FILL:
    // These compute each number or each row by itself.
    case GGML_OP_ADD:
    case GGML_OP_ADD_ID:
    case GGML_OP_ADD1:
    case GGML_OP_SUB:
    case GGML_OP_MUL:
    case GGML_OP_DIV:
    case GGML_OP_SQR:
    case GGML_OP_SQRT:
    case GGML_OP_LOG:
    case GGML_OP_SIN:
    case GGML_OP_COS:
    case GGML_OP_SCALE:
    case GGML_OP_CLAMP:
    case GGML_OP_LEAKY_RELU:
    case GGML_OP_UNARY:
    case GGML_OP_GLU:
    case GGML_OP_SUM_ROWS:
    case GGML_OP_MEAN:
    case GGML_OP_ARGMAX:
    case GGML_OP_ARGSORT:
    case GGML_OP_TOP_K:
    case GGML_OP_NORM:
    case GGML_OP_RMS_NORM:
    case GGML_OP_L2_NORM:
    case GGML_OP_SOFT_MAX:
    case GGML_OP_ROPE:
    // These compute the tokens of a sequence one after the other.
    case GGML_OP_SSM_CONV:
    case GGML_OP_SSM_SCAN:
    case GGML_OP_RWKV_WKV6:
    case GGML_OP_RWKV_WKV7:
    case GGML_OP_GATED_LINEAR_ATTN:
    case GGML_OP_GATED_DELTA_NET:
      return true;

    default:  // ggml's list grows with its versions
      return false;
  }
}

}  // namespace corosrv
