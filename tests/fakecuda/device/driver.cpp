// libcuda.so.1: the part of the driver API that c10, NVRTC users and Triton call.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cbids.h"
#include "core.h"
#undef cuDeviceTotalMem
using namespace fk;
#define A(name) fk::Api _a(fk::DRIVER, DCBID_##name)
#define RET(e)                   \
  do {                           \
    CUresult _e = (CUresult)(e); \
    _a.ret = _e;                 \
    return _e;                   \
  } while (0)
struct Module {
  std::map<std::string, Func*> funcs;
};
static int the_ctx;
extern "C" {
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* v) {
  *v = 13000;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* d, int i) {
  if (i) return CUDA_ERROR_INVALID_DEVICE;
  *d = 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* n) {
  *n = 1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* s, int n, CUdevice) {
  cudaDeviceProp p;
  init_props(&p);
  snprintf(s, n, "%s", p.name);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t* n, CUdevice) {
  *n = TOTAL_MEM;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice) {
  *v = device_attribute(a);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* u, CUdevice) {
  memcpy(u, "fake-h100-000000", 16);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice) {
  *c = (CUcontext)&the_ctx;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* f, int* active) {
  if (f) *f = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* c) {
  *c = (CUcontext)&the_ctx;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* d) {
  *d = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent_v2(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent_v2(CUcontext* c) {
  if (c) *c = (CUcontext)&the_ctx;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetLimit(size_t* v, CUlimit) {
  *v = 1 << 20;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetStreamPriorityRange(int* lo, int* hi) {
  if (lo) *lo = 0;
  if (hi) *hi = -5;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult e, const char** s) {
  *s = e ? "a fake driver error" : "no error";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult e, const char** s) {
  *s = e ? "CUDA_ERROR_UNKNOWN" : "CUDA_SUCCESS";
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* m, const void*) {
  A(cuModuleLoadData);
  *m = (CUmodule) new Module;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule* m, const void*, unsigned, CUjit_option*, void**) {
  A(cuModuleLoadDataEx);
  *m = (CUmodule) new Module;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule* m, const char*) {
  *m = (CUmodule) new Module;
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* f, CUmodule m, const char* name) {
  Lock l;
  auto& x = ((Module*)m)->funcs[name];
  if (!x) {
    x = new Func;
    x->name = name;
  }
  *f = (CUfunction)x;
  return CUDA_SUCCESS;
}
CUresult cuLibraryLoadData(CUlibrary* m, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                           unsigned) {
  *m = (CUlibrary) new Module;
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* f, CUlibrary m, const char* name) {
  return cuModuleGetFunction((CUfunction*)f, (CUmodule)m, name);
}
CUresult cuKernelGetFunction(CUfunction* f, CUkernel k) {
  *f = (CUfunction)k;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction h) {
  Func* f = (Func*)h;
  switch (a) {
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *v = f->regs;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *v = 1024;
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *v = f->static_smem;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *v = f->max_dyn_smem;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *v = 90;
      break;
    default:
      *v = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
  if (a == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) ((Func*)f)->max_dyn_smem = v;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction, int block, size_t) {
  *n = std::max(1, 2048 / std::max(block, 1));
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int* n, CUfunction, const CUlaunchConfig*) {
  *n = 66;
  return CUDA_SUCCESS;
}
static CUresult go(CUfunction h, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned smem, CUstream s) {
  Func* f = (Func*)h;
  Kernel k;
  k.name = f->name.c_str();
  k.g[0] = gx;
  k.g[1] = gy;
  k.g[2] = gz;
  k.b[0] = bx;
  k.b[1] = by;
  k.b[2] = bz;
  k.dyn_smem = smem;
  k.regs = f->regs;
  return (CUresult)launch(stream((cudaStream_t)s), k);
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned smem, CUstream s, void**, void**) {
  A(cuLaunchKernel);
  RET(go(f, gx, gy, gz, bx, by, bz, smem, s));
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned smem, CUstream s, void**) {
  A(cuLaunchCooperativeKernel);
  RET(go(f, gx, gy, gz, bx, by, bz, smem, s));
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void**, void**) {
  A(cuLaunchKernelEx);
  RET(go(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes,
         c->hStream));
}
CUresult cuPointerGetAttribute(void* d, CUpointer_attribute a, CUdeviceptr p) {
  Block b;
  bool ok = find_block((void*)p, &b);
  switch (a) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (!ok) return CUDA_ERROR_INVALID_VALUE;
      *(CUdeviceptr*)d = p;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      if (!ok) return CUDA_ERROR_INVALID_VALUE;
      *(unsigned*)d = b.type == cudaMemoryTypeDevice ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *(int*)d = 0;
      break;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *(void**)d = &the_ctx;
      break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *(void**)d = (void*)p;
      break;
    default:
      *(int*)d = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute* a, void** d, CUdeviceptr p) {
  for (unsigned i = 0; i < n; i++) cuPointerGetAttribute(d[i], a[i], p);
  return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* n, CUdeviceptr p) {
  Block b;
  if (!find_block((void*)p, &b)) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = b.base;
  if (n) *n = b.size;
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) { return (CUresult)dev_malloc((void**)p, n); }
CUresult cuMemFree_v2(CUdeviceptr p) { return (CUresult)dev_free((void*)p); }
CUresult cuMemGetInfo_v2(size_t* f, size_t* t) {
  mem_info(f, t);
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream s) {
  A(cuStreamSynchronize);
  RET(sync_stream(stream((cudaStream_t)s)));
}
CUresult cuCtxSynchronize() {
  A(cuCtxSynchronize);
  RET(sync_device());
}
CUresult cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream s) {
  A(cuMemsetD32Async);
  RET(memset_async(stream((cudaStream_t)s), (void*)p, v & 255, n * 4));
}
// virtual memory (expandable segments) is not here
CUresult cuMemAddressReserve(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMemGetAllocationGranularity(size_t* g, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *g = 2 << 20;
  return CUDA_SUCCESS;
}
CUresult cuGetExportTable(const void**, const CUuuid*) { return CUDA_ERROR_NOT_FOUND; }
CUresult cuGetProcAddress_v2(const char* name, void** p, int, cuuint64_t, CUdriverProcAddressQueryResult* st) {
  static void* self = nullptr;
  if (!self) {
    Dl_info i;
    dladdr((void*)&cuGetProcAddress_v2, &i);
    self = dlopen(i.dli_fname, RTLD_NOW);
  }
  void* f = nullptr;
  for (const char* suffix : {"_v3", "_v2", ""})
    if (!f) {
      std::string n = std::string(name) + suffix;
      f = dlsym(self, n.c_str());
    }
  *p = f;
  if (st) *st = f ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult gpa1(const char* name, void** p, int v, cuuint64_t f) __asm__("cuGetProcAddress");
CUresult gpa1(const char* name, void** p, int v, cuuint64_t f) { return cuGetProcAddress_v2(name, p, v, f, nullptr); }
}
