// libcudart.so.13: the runtime API that PyTorch calls. What is not here is a stub that says "success".
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "cbids.h"
#include "core.h"
using namespace fk;
#define A(name) fk::Api _a(fk::RUNTIME, CBID_##name)
#define RET(e)            \
  do {                    \
    cudaError_t _e = (e); \
    _a.ret = _e;          \
    return _e;            \
  } while (0)
#define BAD return fail(cudaErrorInvalidValue)
static std::unordered_map<const void*, Func*>& funcs() {
  static auto* m = new std::unordered_map<const void*, Func*>;
  return *m;
}
static std::set<Func*>& known() {
  static auto* m = new std::set<Func*>;
  return *m;
}
static std::unordered_map<const void*, std::pair<void*, size_t>>& vars() {
  static auto* m = new std::unordered_map<const void*, std::pair<void*, size_t>>;
  return *m;
}
static Func* func(const void* p) {
  Lock l;
  auto it = funcs().find(p);
  if (it != funcs().end()) return it->second;
  return known().count((Func*)p) ? (Func*)p : nullptr;
}
struct Call {
  dim3 g, b;
  size_t smem;
  void* s;
};
static thread_local std::vector<Call>* calls;
static int blocks_per_sm(const Func* f, int block, size_t dyn) {
  if (block <= 0) return 0;
  int warps = (block + 31) / 32, n = std::min(32, 64 / std::max(warps, 1));
  int by_regs = 65536 / std::max(1, f->regs * warps * 32);
  size_t smem = f->static_smem + dyn + 1024;
  int by_smem = (int)(233472 / smem);
  return std::max(0, std::min(n, std::min(by_regs, by_smem)));
}
extern "C" {
void** __cudaRegisterFatBinary(void* p) {
  static void* h[4];
  return h;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int limit, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  Lock l;
  auto* f = new Func;
  f->name = name;
  funcs()[host] = f;
  known().insert(f);
}
void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t size, int, int) {
  Lock l;
  vars()[host] = {nullptr, size};
}
cudaError_t __cudaGetKernel(cudaKernel_t* k, const void* p) {
  Func* f = func(p);
  *k = (cudaKernel_t)f;
  return f ? cudaSuccess : fail(cudaErrorInvalidDeviceFunction);
}
unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t smem, struct CUstream_st* s) {
  if (!calls) calls = new std::vector<Call>;
  calls->push_back({g, b, smem, s});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* smem, void* s) {
  if (!calls || calls->empty()) return fail(cudaErrorMissingConfiguration);
  Call c = calls->back();
  calls->pop_back();
  *g = c.g;
  *b = c.b;
  *smem = c.smem;
  *(void**)s = c.s;
  return cudaSuccess;
}
static cudaError_t do_launch(const void* fp, dim3 g, dim3 b, size_t smem, cudaStream_t s, const unsigned* cl = 0) {
  Func* f = func(fp);
  if (!f) return fail(cudaErrorInvalidDeviceFunction);
  Kernel k;
  k.name = f->name.c_str();
  k.g[0] = g.x;
  k.g[1] = g.y;
  k.g[2] = g.z;
  k.b[0] = b.x;
  k.b[1] = b.y;
  k.b[2] = b.z;
  k.dyn_smem = smem;
  k.regs = f->regs;
  k.static_smem = f->static_smem;
  if (cl)
    for (int i = 0; i < 3; i++) k.cluster[i] = cl[i];
  if (smem > 48 * 1024 && (int)smem > f->max_dyn_smem) return fail(cudaErrorInvalidValue);
  return launch(stream(s), k);
}
cudaError_t cudaLaunchKernel(const void* f, dim3 g, dim3 b, void**, size_t smem, cudaStream_t s) {
  A(cudaLaunchKernel);
  RET(do_launch(f, g, b, smem, s));
}
cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3 g, dim3 b, void**, size_t smem, cudaStream_t s) {
  A(cudaLaunchKernel);
  RET(do_launch(f, g, b, smem, s));
}
cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3 g, dim3 b, void**, size_t smem, cudaStream_t s) {
  A(cudaLaunchCooperativeKernel);
  RET(do_launch(f, g, b, smem, s));
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void**) {
  A(cudaLaunchKernelExC);
  unsigned cl[3] = {0, 0, 0};
  for (unsigned i = 0; i < c->numAttrs; i++)
    if (c->attrs[i].id == cudaLaunchAttributeClusterDimension) {
      cl[0] = c->attrs[i].val.clusterDim.x;
      cl[1] = c->attrs[i].val.clusterDim.y;
      cl[2] = c->attrs[i].val.clusterDim.z;
    }
  RET(do_launch(f, c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream, cl));
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void* p) {
  Func* f = func(p);
  memset(a, 0, sizeof *a);
  if (!f) return fail(cudaErrorInvalidDeviceFunction);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = f->regs;
  a->ptxVersion = 90;
  a->binaryVersion = 90;
  a->sharedSizeBytes = f->static_smem;
  a->maxDynamicSharedSizeBytes = f->max_dyn_smem;
  a->preferredShmemCarveout = -1;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* p, cudaFuncAttribute attr, int v) {
  A(cudaFuncSetAttribute);
  Func* f = func(p);
  if (!f) RET(fail(cudaErrorInvalidDeviceFunction));
  if (attr == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (v > 232448) RET(fail(cudaErrorInvalidValue));
    f->max_dyn_smem = v;
  }
  return cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t k, cudaFuncAttribute attr, int v, int) {
  return cudaFuncSetAttribute(k, attr, v);
}
cudaError_t cudaFuncGetName(const char** n, const void* p) {
  Func* f = func(p);
  if (!f) return fail(cudaErrorInvalidDeviceFunction);
  *n = f->name.c_str();
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void* p, int block, size_t dyn,
                                                                   unsigned) {
  A(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
  Func* f = func(p);
  static Func d;
  *n = blocks_per_sm(f ? f : &d, block, dyn);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void* p, int block, size_t dyn) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, p, block, dyn, 0);
}
cudaError_t cudaOccupancyMaxActiveClusters(int* n, const void*, const cudaLaunchConfig_t*) {
  *n = 66;
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** p, const void* sym) {
  Lock l;
  auto it = vars().find(sym);
  if (it == vars().end()) return fail(cudaErrorInvalidSymbol);
  if (!it->second.first) {
    cudaError_t e = dev_malloc(&it->second.first, it->second.second + 8);
    if (e) return e;
  }
  *p = it->second.first;
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void* sym, const void* src, size_t n, size_t off, cudaMemcpyKind) {
  A(cudaMemcpyToSymbol);
  if (cudaError_t e = unsafe_call()) RET(e);
  void* p;
  if (cudaError_t e = cudaGetSymbolAddress(&p, sym)) RET(e);
  memcpy((char*)p + off, src, n);
  return cudaSuccess;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t* lib, const void*, cudaJitOption*, void**, unsigned, cudaLibraryOption*,
                                void**, unsigned) {
  *lib = (cudaLibrary_t) new int;
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* k, cudaLibrary_t, const char* name) {
  Lock l;
  auto* f = new Func;
  f->name = name;
  known().insert(f);
  *k = (cudaKernel_t)f;
  return cudaSuccess;
}

// ---- device
static thread_local int device;
cudaError_t cudaGetDeviceCount(int* n) {
  const char* v = getenv("CUDA_VISIBLE_DEVICES");
  bool none = v && (!*v || *v == '-');
  *n = none ? 0 : 1;
  return none ? fail(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaGetDevice(int* d) {
  A(cudaGetDevice);
  *d = device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) {
  A(cudaSetDevice);
  if (d) RET(fail(cudaErrorInvalidDevice));
  device = d;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
  if (d) return fail(cudaErrorInvalidDevice);
  init_props(p);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int) {
  A(cudaDeviceGetAttribute);
  *v = device_attribute(a);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* s, int n, int) {
  snprintf(s, n, "0000:1B:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lo, int* hi) {
  if (lo) *lo = 0;
  if (hi) *hi = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* v, int, int) {
  *v = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  A(cudaDeviceSynchronize);
  RET(sync_device());
}
cudaError_t cudaDriverGetVersion(int* v) {
  *v = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) {
  *v = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return last_error(true); }
cudaError_t cudaPeekAtLastError() { return last_error(false); }
static const struct {
  cudaError_t e;
  const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
};
const char* cudaGetErrorName(cudaError_t e) {
  for (auto& x : errors)
    if (x.e == e) return x.name;
  return "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t e) {
  for (auto& x : errors)
    if (x.e == e) return x.text;
  return "unknown error";
}

// ---- memory
cudaError_t cudaMalloc(void** p, size_t n) {
  A(cudaMalloc);
  if (cudaError_t e = unsafe_call()) RET(e);
  RET(dev_malloc(p, n));
}
cudaError_t cudaFree(void* p) {
  A(cudaFree);
  if (p) {
    if (cudaError_t e = unsafe_call()) RET(e);
    u64 t = 0;
    {
      Lock l;
      for (Stream* s : streams) t = std::max(t, s->ready);
    }
    wait_until(t);
  }
  RET(dev_free(p));
}
cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) {
  A(cudaMallocAsync);
  RET(dev_malloc(p, n));
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t) {
  A(cudaFreeAsync);
  RET(dev_free(p));
}
cudaError_t cudaMallocManaged(void** p, size_t n, unsigned) { return dev_malloc(p, n); }
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
  A(cudaHostAlloc);
  if (cudaError_t e = unsafe_call()) RET(e);
  RET(host_malloc(p, n));
}
cudaError_t cudaMallocHost(void** p, size_t n) { return cudaHostAlloc(p, n, 0); }
cudaError_t cudaFreeHost(void* p) {
  A(cudaFreeHost);
  if (cudaError_t e = unsafe_call()) RET(e);
  RET(host_free(p));
}
cudaError_t cudaHostRegister(void* p, size_t n, unsigned) {
  A(cudaHostRegister);
  if (cudaError_t e = unsafe_call()) RET(e);
  host_register(p, n);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  A(cudaHostUnregister);
  if (cudaError_t e = unsafe_call()) RET(e);
  RET(host_unregister(p) ? cudaSuccess : fail(cudaErrorInvalidValue));
}
cudaError_t cudaHostGetDevicePointer(void** d, void* p, unsigned) {
  *d = p;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* f, size_t* t) {
  A(cudaMemGetInfo);
  mem_info(f, t);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  A(cudaPointerGetAttributes);
  Block b;
  memset(a, 0, sizeof *a);
  if (!find_block(p, &b)) {
    a->type = cudaMemoryTypeUnregistered;
    a->device = -2;
    a->hostPointer = (void*)p;
    return cudaSuccess;
  }
  a->type = (cudaMemoryType)b.type;
  a->device = 0;
  a->devicePointer = (void*)p;
  a->hostPointer = b.type == cudaMemoryTypeHost ? (void*)p : 0;
  return cudaSuccess;
}
static bool pageable(const void* p) {
  Block b;
  return !find_block(p, &b);
}
cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind k) {
  A(cudaMemcpy);
  if (cudaError_t e = unsafe_call()) RET(e);
  if (cudaError_t e = memcpy_async(stream(0), d, s, n, k)) RET(e);
  wait_until(stream(0)->ready);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind k, cudaStream_t st) {
  A(cudaMemcpyAsync);
  Stream* q = stream(st);
  if (cudaError_t e = memcpy_async(q, d, s, n, k)) RET(e);
  if (!q->cap && n && pageable(d)) wait_until(q->ready);  // to pageable memory: waits
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t st) {
  A(cudaMemcpyPeerAsync);
  RET(memcpy_async(stream(st), d, s, n, cudaMemcpyDeviceToDevice));
}
cudaError_t cudaMemcpy2DAsync(void* d, size_t dp, const void* s, size_t sp, size_t w, size_t h, cudaMemcpyKind k,
                              cudaStream_t st) {
  A(cudaMemcpy2DAsync);
  for (size_t i = 0; i < h; i++) memmove((char*)d + i * dp, (const char*)s + i * sp, w);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* p, int v, size_t n) {
  A(cudaMemset);
  if (cudaError_t e = unsafe_call()) RET(e);
  RET(memset_async(stream(0), p, v, n));
}
cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t s) {
  A(cudaMemsetAsync);
  RET(memset_async(stream(s), p, v, n));
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int) {
  static int pool;
  *p = (cudaMemPool_t)&pool;
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) {
  *(u64*)v = 0;
  return cudaSuccess;
}

// ---- streams and events
cudaError_t cudaStreamCreate(cudaStream_t* s) {
  A(cudaStreamCreate);
  *s = (cudaStream_t)new_stream(0, 0);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned f) {
  A(cudaStreamCreateWithFlags);
  *s = (cudaStream_t)new_stream(f, 0);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned f, int p) {
  A(cudaStreamCreateWithPriority);
  *s = (cudaStream_t)new_stream(f, p);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  A(cudaStreamDestroy);
  free_stream(stream(s));
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int* p) {
  *p = stream(s)->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned* f) {
  *f = stream(s)->flags;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  A(cudaStreamSynchronize);
  RET(sync_stream(stream(s)));
}
cudaError_t cudaStreamQuery(cudaStream_t h) {
  A(cudaStreamQuery);
  Stream* s = stream(h);
  Lock l;
  if (s->cap) {
    invalidate(s->cap);
    RET(fail(cudaErrorStreamCaptureUnsupported));
  }
  if (cudaError_t e = unsafe_call()) RET(e);
  if (s->ready > now()) {
    _a.ret = cudaErrorNotReady;
    return cudaErrorNotReady;
  }
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) {
  A(cudaStreamWaitEvent);
  RET(stream_wait(stream(s), (Event*)e, f & cudaEventWaitExternal));
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* d, unsigned) {
  A(cudaStreamAddCallback);
  if (stream(s)->cap) {
    invalidate(stream(s)->cap);
    RET(fail(cudaErrorStreamCaptureUnsupported));
  }
  wait_until(stream(s)->ready);
  f(s, cudaSuccess, d);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* d) {
  A(cudaLaunchHostFunc);
  RET(host_call(stream(s), [=] { f(d); }));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned f) {
  A(cudaEventCreateWithFlags);
  auto* x = new Event;
  x->flags = f;
  *e = (cudaEvent_t)x;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  A(cudaEventDestroy);
  delete (Event*)e;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  A(cudaEventRecord);
  RET(event_record((Event*)e, stream(s), false));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) {
  A(cudaEventRecordWithFlags);
  RET(event_record((Event*)e, stream(s), f & cudaEventRecordExternal));
}
cudaError_t cudaEventQuery(cudaEvent_t h) {
  A(cudaEventQuery);
  Event* e = (Event*)h;
  Lock l;
  if (e->cap) {
    if (captures.count(e->cap_id)) invalidate(e->cap);
    RET(fail(cudaErrorCapturedEvent));
  }
  if (cudaError_t x = unsafe_call()) RET(x);
  if (e->recorded && e->t > now()) {
    _a.ret = cudaErrorNotReady;
    return fail(cudaErrorNotReady);
  }
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t h) {
  A(cudaEventSynchronize);
  Event* e = (Event*)h;
  u64 t;
  {
    Lock l;
    if (e->cap) {
      if (captures.count(e->cap_id)) invalidate(e->cap);
      RET(fail(cudaErrorCapturedEvent));
    }
    if (cudaError_t x = unsafe_call()) RET(x);
    t = e->recorded ? e->t : 0;
  }
  wait_until(t);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  A(cudaEventElapsedTime);
  Event *x = (Event*)a, *y = (Event*)b;
  if (!x->recorded || !y->recorded || (x->flags & cudaEventDisableTiming) || (y->flags & cudaEventDisableTiming))
    RET(fail(cudaErrorInvalidResourceHandle));
  if (x->cap || y->cap) RET(fail(cudaErrorCapturedEvent));
  if (std::max(x->t, y->t) > now()) RET(fail(cudaErrorNotReady));
  *ms = (float)((double)(int64_t)(y->t - x->t) * 1e-6);
  return cudaSuccess;
}

// ---- capture and graphs
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode m) {
  A(cudaStreamBeginCapture);
  RET(begin_capture(stream(s), m, nullptr));
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t s, cudaGraph_t g, const cudaGraphNode_t* d,
                                          const cudaGraphEdgeData*, size_t n, cudaStreamCaptureMode m) {
  A(cudaStreamBeginCaptureToGraph);
  if (cudaError_t e = begin_capture(stream(s), m, (Graph*)g)) RET(e);
  for (size_t i = 0; i < n; i++) stream(s)->deps.push_back((Node*)d[i]);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
  A(cudaStreamEndCapture);
  Graph* x;
  cudaError_t e = end_capture(stream(s), &x);
  *g = (cudaGraph_t)x;
  RET(e);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t h, cudaStreamCaptureStatus* st) {
  A(cudaStreamIsCapturing);
  Stream* s = stream(h);
  Lock l;
  if (s == stream(0))
    for (auto& [i, c] : captures)
      for (Stream* t : c->streams)
        if (!(t->flags & cudaStreamNonBlocking)) RET(fail(cudaErrorStreamCaptureImplicit));
  *st = !s->cap           ? cudaStreamCaptureStatusNone
        : s->cap->invalid ? cudaStreamCaptureStatusInvalidated
                          : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t h, cudaStreamCaptureStatus* st, unsigned long long* id,
                                     cudaGraph_t* g, const cudaGraphNode_t** deps, const cudaGraphEdgeData** ed,
                                     size_t* n) {
  A(cudaStreamGetCaptureInfo);
  Stream* s = stream(h);
  Lock l;
  if (cudaError_t e = cudaStreamIsCapturing(h, st)) RET(e);
  if (ed) *ed = nullptr;
  if (s->cap) {
    if (id) *id = s->cap->id;
    if (g) *g = (cudaGraph_t)s->cap->graph;
    if (deps) *deps = (const cudaGraphNode_t*)s->deps.data();
    if (n) *n = s->deps.size();
  }
  return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t h, cudaGraphNode_t* d, const cudaGraphEdgeData*, size_t n,
                                                unsigned flags) {
  A(cudaStreamUpdateCaptureDependencies);
  Stream* s = stream(h);
  Lock l;
  if (!s->cap) RET(fail(cudaErrorIllegalState));
  if (flags == cudaStreamSetCaptureDependencies) s->deps.clear();
  for (size_t i = 0; i < n; i++) s->deps.push_back((Node*)d[i]);
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
  A(cudaThreadExchangeStreamCaptureMode);
  std::swap(*m, thread_mode);
  return cudaSuccess;
}
cudaError_t cudaGraphCreate(cudaGraph_t* g, unsigned) {
  *g = (cudaGraph_t)new_graph();
  return cudaSuccess;
}
cudaError_t cudaGraphAddNode(cudaGraphNode_t* out, cudaGraph_t g, const cudaGraphNode_t* d, const cudaGraphEdgeData*,
                             size_t n, cudaGraphNodeParams*) {
  A(cudaGraphAddNode);
  std::vector<Node*> deps((Node**)d, (Node**)d + n);
  Node e;
  e.type = N_EMPTY;
  *out = (cudaGraphNode_t)add_node((Graph*)g, e, deps);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* nodes, size_t* n) {
  auto& v = ((Graph*)g)->nodes;
  if (!nodes) {
    *n = v.size();
    return cudaSuccess;
  }
  for (size_t i = 0; i < *n && i < v.size(); i++) nodes[i] = (cudaGraphNode_t)v[i];
  *n = std::min(*n, v.size());
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t h, cudaGraphNode_t* out, cudaGraphEdgeData*, size_t* n) {
  auto& v = ((Node*)h)->deps;
  if (!out) {
    *n = v.size();
    return cudaSuccess;
  }
  for (size_t i = 0; i < *n && i < v.size(); i++) out[i] = (cudaGraphNode_t)v[i];
  *n = std::min(*n, v.size());
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t h, cudaGraphNodeType* t) {
  switch (((Node*)h)->type) {
    case N_KERNEL:
      *t = cudaGraphNodeTypeKernel;
      break;
    case N_MEMCPY:
      *t = cudaGraphNodeTypeMemcpy;
      break;
    case N_MEMSET:
      *t = cudaGraphNodeTypeMemset;
      break;
    case N_HOST:
      *t = cudaGraphNodeTypeHost;
      break;
    default:
      *t = cudaGraphNodeTypeEmpty;
  }
  return cudaSuccess;
}
static cudaError_t instantiate(cudaGraphExec_t* x, cudaGraph_t g) {
  if (!g) return fail(cudaErrorInvalidValue);
  Lock l;
  auto* e = new GraphExec;
  e->id = ((Graph*)g)->id;
  for (Node* n : ((Graph*)g)->nodes) e->nodes.push_back(*n);
  *x = (cudaGraphExec_t)e;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* x, cudaGraph_t g, unsigned long long) {
  A(cudaGraphInstantiateWithFlags);
  RET(instantiate(x, g));
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* x, cudaGraph_t g, unsigned long long) {
  A(cudaGraphInstantiate);
  RET(instantiate(x, g));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) {
  A(cudaGraphLaunch);
  RET(graph_launch((GraphExec*)x, stream(s)));
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) {
  A(cudaGraphExecDestroy);
  Lock l;
  delete (GraphExec*)x;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  A(cudaGraphDestroy);
  if (g) free_graph((Graph*)g);
  return cudaSuccess;
}

// ---- driver
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** p, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* st) {
  static void* lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  static auto get =
      lib ? (int (*)(const char*, void**, int, unsigned long long, int*))dlsym(lib, "cuGetProcAddress_v2") : nullptr;
  *p = nullptr;
  int r = 0;
  if (get) get(name, p, 13000, 0, &r);
  if (st) *st = *p ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** p, unsigned long long f,
                                    cudaDriverEntryPointQueryResult* st) {
  return cudaGetDriverEntryPointByVersion(name, p, 13000, f, st);
}
}
