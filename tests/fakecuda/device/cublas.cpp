// libcublas.so.13 and libcublasLt.so.13: every product is one kernel that does nothing, with a plausible name.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstdio>
#include <cstring>

#include "cbids.h"
#include "core.h"
using namespace fk;
static const char* keep(const std::string& s) {
  static auto* all = new std::set<std::string>;
  Lock l;
  return all->insert(s).first->c_str();
}
static int width(int t) {
  return t == CUDA_R_16F || t == CUDA_R_16BF ? 2
         : t == CUDA_R_64F                   ? 8
         : t == CUDA_C_32F                   ? 8
         : t == CUDA_C_64F                   ? 16
         : t == CUDA_R_32F                   ? 4
                                             : 1;
}
cublasStatus_t fake_gemm(Stream* s, bool ta, bool tb, int64_t m, int64_t n, int64_t k, int batch, int type, bool tf32,
                         const char* tail) {
  if (!m || !n || !batch) return CUBLAS_STATUS_SUCCESS;
  char name[200];
  int tm = m >= 128 ? 128 : 64, tn = n >= 128 ? 128 : 64;
  double rate;
  const char* ops = ta ? (tb ? "tt" : "tn") : (tb ? "nt" : "nn");
  if (width(type) == 2) {
    snprintf(name, sizeof name, "nvjet_%s_%dx%d_64x6_1x2_h_bz_%s%s", type == CUDA_R_16BF ? "tst" : "hsh", tm, tn,
             ta ? "TN" : "NN", tail);
    rate = 6e5;
  } else if (width(type) == 1) {
    snprintf(name, sizeof name, "nvjet_qqtst_%dx%d_128x6_1x2_h_bz_coopA_TNT%s", tm, tn, tail);
    rate = 1.2e6;
  } else if (type == CUDA_R_64F) {
    snprintf(name, sizeof name,
             "sm90_xmma_gemm_f64f64_f64f64_f64_%s_n_tilesize64x64x16_stage4_warpsize4x1x1_aligna16_alignc16_execute_"
             "kernel__51_cublas%s",
             ops, tail);
    rate = 4e4;
  } else if (tf32) {
    snprintf(name, sizeof name,
             "sm80_xmma_gemm_f32f32_tf32f32_f32_%s_n_tilesize%dx%dx32_stage4_warpsize2x2x1_tensor16x8x8_kernel%s", ops,
             tm, tn, tail);
    rate = 3e5;
  } else {
    snprintf(name, sizeof name, "ampere_sgemm_%dx%d_%s%s", tm, tn, ops, tail);
    rate = 4.5e4;
  }
  Kernel q;
  q.name = keep(name);
  q.g[0] = (u32)((m + tm - 1) / tm);
  q.g[1] = (u32)std::min<int64_t>((n + tn - 1) / tn, 65535);
  q.g[2] = std::min(batch, 65535);
  q.b[0] = 128;
  q.regs = 122;
  q.static_smem = 16384;
  q.dur = 2500 + (u64)(2.0 * m * n * k * batch / rate / 1e0 / 1000.0);
  int ret;
  if (width(type) <= 2) {
    fk::Api a(fk::DRIVER, DCBID_cuLaunchKernelEx);
    ret = launch(s, q);
    a.ret = ret;
  } else {
    fk::Api a(fk::RUNTIME, CBID_cudaLaunchKernel);
    ret = launch(s, q);
    a.ret = ret;
  }
  return ret ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t fake_small(Stream* s, const char* name, int64_t n) {
  Kernel q;
  q.name = keep(name);
  q.g[0] = (u32)std::max<int64_t>(1, std::min<int64_t>((n + 127) / 128, 65535));
  q.b[0] = 128;
  fk::Api a(fk::RUNTIME, CBID_cudaLaunchKernel);
  return launch(s, q) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
#ifdef BLAS
struct Handle {
  Stream* s = stream(0);
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t mode = CUBLAS_POINTER_MODE_HOST;
};
#define H(h) ((Handle*)(h))
#define T(x) ((x) != CUBLAS_OP_N)
static bool tf32(cublasHandle_t h) { return H(h)->math == CUBLAS_TF32_TENSOR_OP_MATH; }
extern "C" {
cublasStatus_t cublasCreate_v2(cublasHandle_t* h) {
  if (unsafe_call()) return CUBLAS_STATUS_NOT_INITIALIZED;
  *h = (cublasHandle_t) new Handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t h) {
  delete H(h);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t s) {
  H(h)->s = stream(s);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t h, cublasMath_t* m) {
  *m = H(h)->math;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t m) {
  H(h)->math = m;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t* m) {
  *m = H(h)->mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t m) {
  H(h)->mode = m;
  return CUBLAS_STATUS_SUCCESS;
}
#define GEMM(X, t, type)                                                                                             \
  cublasStatus_t cublas##X##gemm_v2(cublasHandle_t h, cublasOperation_t a, cublasOperation_t b, int m, int n, int k, \
                                    const t*, const t*, int, const t*, int, const t*, t*, int) {                     \
    return fake_gemm(H(h)->s, T(a), T(b), m, n, k, 1, type, tf32(h), "");                                            \
  }                                                                                                                  \
  cublasStatus_t cublas##X##gemmStridedBatched(cublasHandle_t h, cublasOperation_t a, cublasOperation_t b, int m,    \
                                               int n, int k, const t*, const t*, int, long long, const t*, int,      \
                                               long long, const t*, t*, int, long long, int batch) {                 \
    return fake_gemm(H(h)->s, T(a), T(b), m, n, k, batch, type, tf32(h), "");                                        \
  }                                                                                                                  \
  cublasStatus_t cublas##X##gemv_v2(cublasHandle_t h, cublasOperation_t a, int m, int n, const t*, const t*, int,    \
                                    const t*, int, const t*, t*, int) {                                              \
    return fake_small(H(h)->s,                                                                                       \
                      T(a) ? "void gemv2T_kernel_val<int, int, " #t ", " #t ", " #t ", " #t                          \
                             ", 128, 16, 4, 4, false, false>"                                                        \
                           : "void gemvNSP_kernel<" #t ", " #t ", " #t ", " #t ", 1, 32, 4, 1024>",                  \
                      m);                                                                                            \
  }
GEMM(S, float, CUDA_R_32F)
GEMM(D, double, CUDA_R_64F)
GEMM(C, cuComplex, CUDA_C_32F)
GEMM(Z, cuDoubleComplex, CUDA_C_64F)
cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t a, cublasOperation_t b, int m, int n, int k,
                            const void*, const void*, cudaDataType A, int, const void*, cudaDataType, int, const void*,
                            void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t) {
  return fake_gemm(H(h)->s, T(a), T(b), m, n, k, 1, A, tf32(h), "");
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t a, cublasOperation_t b, int m, int n,
                                          int k, const void*, const void*, cudaDataType A, int, long long, const void*,
                                          cudaDataType, int, long long, const void*, void*, cudaDataType, int,
                                          long long, int batch, cublasComputeType_t, cublasGemmAlgo_t) {
  return fake_gemm(H(h)->s, T(a), T(b), m, n, k, batch, A, tf32(h), "");
}
cublasStatus_t cublasSgemmEx(cublasHandle_t h, cublasOperation_t a, cublasOperation_t b, int m, int n, int k,
                             const float*, const void*, cudaDataType A, int, const void*, cudaDataType, int,
                             const float*, void*, cudaDataType, int) {
  return fake_gemm(H(h)->s, T(a), T(b), m, n, k, 1, A, tf32(h), "");
}
static cublasStatus_t dot(cublasHandle_t h, int n) {
  fake_small(H(h)->s,
             "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>, "
             "cublasGemvTensorStridedBatched<float> > >",
             n);
  return fake_small(H(h)->s,
                    "void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<float>, "
                    "cublasGemvTensorStridedBatched<float> >",
                    1);
}
cublasStatus_t cublasSdot_v2(cublasHandle_t h, int n, const float*, int, const float*, int, float*) {
  return dot(h, n);
}
cublasStatus_t cublasDdot_v2(cublasHandle_t h, int n, const double*, int, const double*, int, double*) {
  return dot(h, n);
}
cublasStatus_t cublasDotEx(cublasHandle_t h, int n, const void*, cudaDataType, int, const void*, cudaDataType, int,
                           void*, cudaDataType, cudaDataType) {
  return dot(h, n);
}
cublasStatus_t cublasStrsm_v2(cublasHandle_t h, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,
                              int m, int n, const float*, const float*, int, float*, int) {
  return fake_small(H(h)->s, "void trsm_left_kernel<float, 256, 4, false, true, true, false, true>", (int64_t)m * n);
}
}
#else
struct Desc {
  cublasComputeType_t c;
  int ta = 0, tb = 0, epilogue = 1;
};
struct Layout {
  int type;
  uint64_t rows, cols;
  int batch = 1;
};
extern "C" {
size_t cublasLtGetVersion() { return 130101; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) {
  *h = (cublasLtHandle_t) new int;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t c, cudaDataType_t) {
  auto* x = new Desc;
  x->c = c;
  *d = (cublasLtMatmulDesc_t)x;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete (Desc*)d;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void* v,
                                              size_t) {
  auto* x = (Desc*)d;
  if (a == CUBLASLT_MATMUL_DESC_TRANSA) x->ta = *(int*)v;
  if (a == CUBLASLT_MATMUL_DESC_TRANSB) x->tb = *(int*)v;
  if (a == CUBLASLT_MATMUL_DESC_EPILOGUE) x->epilogue = *(int*)v;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType t, uint64_t r, uint64_t c, int64_t) {
  auto* x = new Layout;
  x->type = t;
  x->rows = r;
  x->cols = c;
  *l = (cublasLtMatrixLayout_t)x;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  delete (Layout*)l;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a,
                                                const void* v, size_t) {
  if (a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) ((Layout*)l)->batch = *(int*)v;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
  *p = (cublasLtMatmulPreference_t) new int;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete (int*)p;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int n, cublasLtMatmulHeuristicResult_t* r,
                                              int* got) {
  memset(r, 0, sizeof *r);
  r->state = CUBLAS_STATUS_SUCCESS;
  r->wavesCount = 1;
  *got = n > 0;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void*, const void*,
                              cublasLtMatrixLayout_t A, const void*, cublasLtMatrixLayout_t B, const void*, const void*,
                              cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t Dl, const cublasLtMatmulAlgo_t*,
                              void*, size_t, cudaStream_t s) {
  auto* x = (Desc*)d;
  auto *a = (Layout*)A, *o = (Layout*)Dl;
  int e = x->epilogue;
  (void)B;
  const char* tail = e == CUBLASLT_EPILOGUE_BIAS                                       ? "_bias"
                     : e == CUBLASLT_EPILOGUE_RELU_BIAS || e == CUBLASLT_EPILOGUE_RELU ? "_relu_bias"
                     : e == CUBLASLT_EPILOGUE_GELU_BIAS || e == CUBLASLT_EPILOGUE_GELU ? "_gelu_bias"
                                                                                       : "";
  return fake_gemm(stream(s), x->ta != CUBLAS_OP_N, x->tb != CUBLAS_OP_N, o->rows, o->cols,
                   x->ta != CUBLAS_OP_N ? a->rows : a->cols, o->batch, a->type, x->c == CUBLAS_COMPUTE_32F_FAST_TF32,
                   tail);
}
}
#endif
