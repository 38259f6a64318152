#include "core.h"

#include <cuda.h>
#include <cupti.h>
#include <cupti_activity_deprecated.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <unordered_map>
namespace fk {
std::recursive_mutex mu;
std::set<Stream*> streams;
std::map<u64, Capture*> captures;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
static thread_local cudaError_t last = cudaSuccess;
static thread_local u32 current_corr = 0;
static u32 next_corr = 1;
static u64 next_capture = 1, next_node = 1;
static u32 next_graph = 1, next_stream = 13, next_event = 1;
static const u64 LAUNCH_NS = 4000, GAP_NS = 700, GRAPH_GAP_NS = 900;
bool verbose() {
  static int v = getenv("FAKECUDA_VERBOSE") ? atoi(getenv("FAKECUDA_VERBOSE")) : 0;
  return v;
}
static FILE* logfile() {
  static FILE* f = getenv("FAKECUDA_LOG") ? fopen(getenv("FAKECUDA_LOG"), "a") : nullptr;
  return f;
}
extern "C" long fk_stub(const char* name) {
  static std::set<std::string>* seen = new std::set<std::string>;
  Lock l;
  if (seen->insert(name).second && verbose()) fprintf(stderr, "[fakecuda] stub %s\n", name);
  if (logfile()) {
    fprintf(logfile(), "STUB %s\n", name);
    fflush(logfile());
  }
  return 0;
}
static std::atomic<u64> paused{0};
u64 now() { return real() - paused; }
u64 real() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
void wait_until(u64 t) {
  for (;;) {
    u64 n = now();
    if (n >= t) return;
    if (t - n > 100000) {
      timespec s{0, 0};
      u64 d = t - n - 50000;
      s.tv_sec = d / 1000000000;
      s.tv_nsec = d % 1000000000;
      nanosleep(&s, 0);
    }
  }
}
long tid() {
  static thread_local long t = syscall(SYS_gettid);
  return t;
}
cudaError_t fail(cudaError_t e) {
  if (e != cudaSuccess) last = e;
  static bool trace = getenv("FAKECUDA_TRACE_ERRORS");
  if (trace && e != cudaSuccess && e != cudaErrorNotReady) {
    void* b[40];
    fprintf(stderr, "[fakecuda] error %d\n", e);
    backtrace_symbols_fd(b, backtrace(b, 40), 2);
  }
  return e;
}
cudaError_t last_error(bool clear) {
  cudaError_t e = last;
  if (clear) last = cudaSuccess;
  return e;
}

// ---- streams
static Stream* def_streams[3];
Stream* stream(cudaStream_t s) {
  uintptr_t h = (uintptr_t)s;
  if (h <= 2) {
    int i = h == 2 ? 2 : 0;
    if (!def_streams[i]) {
      Lock l;
      if (!def_streams[i]) {
        auto* n = new Stream;
        n->id = i == 2 ? 8 : 7;
        streams.insert(n);
        def_streams[i] = n;
      }
    }
    return def_streams[i];
  }
  return (Stream*)s;
}
Stream* new_stream(unsigned flags, int priority) {
  Lock l;
  stream(0);
  auto* s = new Stream;
  s->id = next_stream;
  next_stream += 4;
  s->flags = flags;
  s->priority = priority;
  streams.insert(s);
  return s;
}
void free_stream(Stream* s) {
  Lock l;
  streams.erase(s);
}  // kept: handles may be compared later
bool live(Stream* s) { return streams.count(s); }

// ---- captures
void invalidate(Capture* c) { c->invalid = true; }
cudaError_t unsafe_call() {
  Lock l;
  if (captures.empty() || thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  bool hit = false;
  for (auto& [id, c] : captures) {
    bool mine = c->thread == tid();
    bool bad = thread_mode == cudaStreamCaptureModeGlobal
                   ? c->mode == cudaStreamCaptureModeGlobal || (c->mode == cudaStreamCaptureModeThreadLocal && mine)
                   : mine && c->mode != cudaStreamCaptureModeRelaxed;
    if (bad) {
      invalidate(c);
      hit = true;
    }
  }
  return hit ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
static cudaError_t legacy_check(Stream* s) {  // work on the legacy stream while a blocking stream captures
  if (s != stream(0)) return cudaSuccess;
  bool hit = false;
  for (auto& [id, c] : captures)
    for (Stream* t : c->streams)
      if (!(t->flags & cudaStreamNonBlocking)) {
        invalidate(c);
        hit = true;
      }
  return hit ? fail(cudaErrorStreamCaptureImplicit) : cudaSuccess;
}
Graph* new_graph() {
  Lock l;
  auto* g = new Graph;
  g->id = next_graph++;
  return g;
}
void free_graph(Graph* g) {
  Lock l;
  if (--g->refs <= 0) {
    for (Node* n : g->nodes) delete n;
    delete g;
  }
}
Node* add_node(Graph* g, Node n, const std::vector<Node*>& deps) {
  auto* p = new Node(std::move(n));
  p->deps = deps;
  p->id = next_node++;
  g->nodes.push_back(p);
  return p;
}
static cudaError_t capture_node(Stream* s, Node n) {
  if (s->cap->invalid) return fail(cudaErrorStreamCaptureInvalidated);
  Node* p = add_node(s->cap->graph, std::move(n), s->deps);
  s->deps = {p};
  return cudaSuccess;
}
cudaError_t begin_capture(Stream* s, cudaStreamCaptureMode m, Graph* into) {
  Lock l;
  if (s == stream(0)) return fail(cudaErrorStreamCaptureUnsupported);
  if (s->cap) return fail(cudaErrorIllegalState);
  auto* c = new Capture;
  c->graph = into ? into : new_graph();
  c->own_graph = !into;
  c->id = next_capture++;
  c->mode = m;
  c->origin = s;
  c->thread = tid();
  c->streams.insert(s);
  s->cap = c;
  s->deps.clear();
  captures[c->id] = c;
  return cudaSuccess;
}
void end_capture_state(Capture* c) {
  for (Stream* s : c->streams) {
    s->cap = 0;
    s->deps.clear();
  }
  captures.erase(c->id);
}
static void ancestors(Node* n, std::set<Node*>& seen) {
  std::vector<Node*> todo{n};
  while (!todo.empty()) {
    Node* x = todo.back();
    todo.pop_back();
    if (!seen.insert(x).second) continue;
    for (Node* d : x->deps) todo.push_back(d);
  }
}
cudaError_t end_capture(Stream* s, Graph** out) {
  Lock l;
  *out = nullptr;
  Capture* c = s->cap;
  if (!c) return fail(cudaErrorIllegalState);
  if (c->origin != s) {
    invalidate(c);
    return fail(cudaErrorStreamCaptureUnmatched);
  }
  if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != tid()) {
    return fail(cudaErrorStreamCaptureWrongThread);
  }
  bool unjoined = false;
  if (!c->invalid) {
    std::set<Node*> seen;
    for (Node* n : s->deps) ancestors(n, seen);
    for (Stream* t : c->streams)
      if (t != s)
        for (Node* n : t->deps)
          if (!seen.count(n)) unjoined = true;
  }
  end_capture_state(c);
  if (c->invalid) return fail(cudaErrorStreamCaptureInvalidated);
  if (unjoined) return fail(cudaErrorStreamCaptureUnjoined);
  *out = c->graph;
  return cudaSuccess;  // c stays: events may still point at it
}

// ---- activity records
bool kinds[128];
std::set<u32> off_apis[2];
static std::vector<char> records;
void (*on_record)() = nullptr;
static clock_fn user_clock = nullptr;
static u64 clk_t0, clk_c0;
static u64 realtime() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
u64 clock_now() { return user_clock ? user_clock() : realtime(); }
// One moment on both clocks. A process that is put aside between asking the one and the other would tell two moments.
static void same_moment(u64* host, u64* user) {
  u64 best = UINT64_MAX;
  for (int i = 0; i < 64; i++) {
    u64 before = real(), asked = clock_now(), after = real();
    if (after - before < best) best = after - before, *host = before + (after - before) / 2, *user = asked;
  }
}
void set_clock(clock_fn f) {
  Lock l;
  if (f == user_clock) return;
  user_clock = f;
  same_moment(&clk_t0, &clk_c0);
}
static thread_local std::map<u32, std::vector<u64>>* externals = nullptr;
void push_external(u32 kind, u64 id) {
  if (!externals) externals = new std::map<u32, std::vector<u64>>;
  (*externals)[kind].push_back(id);
}
bool pop_external(u32 kind, u64* id) {
  if (!externals || (*externals)[kind].empty()) return false;
  auto& v = (*externals)[kind];
  if (id) *id = v.back();
  v.pop_back();
  return true;
}
size_t record_size(u32 kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(CUpti_ActivityKernel9);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(CUpti_ActivityMemcpy5);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      return sizeof(CUpti_ActivitySynchronization);
  }
  return 0;
}
template <class T>
static void put(const T& r) {
  const char* p = (const char*)&r;
  records.insert(records.end(), p, p + sizeof(T));
}
void take_records(std::vector<char>& out) {
  Lock l;
  out.swap(records);
  records.clear();
  if (user_clock)
    while (real() < clk_t0 + 20000000) usleep(1000);  // long enough to measure the clock's rate
  u64 t1, c1;
  same_moment(&t1, &c1);
  long double rate = 1.0L;
  if (user_clock) rate = (long double)(int64_t)(c1 - clk_c0) / (t1 - clk_t0);
  u64 bt = t1, bc = c1;
  auto conv = [&](u64 t) -> u64 { return bc + (int64_t)((long double)((int64_t)(t - bt)) * rate); };
  for (char *p = out.data(), *e = p + out.size(); p < e;) {
    u32 kind = *(u32*)p;
    switch (kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        auto* r = (CUpti_ActivityKernel9*)p;
        r->start = conv(r->start);
        r->end = conv(r->end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        auto* r = (CUpti_ActivityMemcpy5*)p;
        r->start = conv(r->start);
        r->end = conv(r->end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        auto* r = (CUpti_ActivityMemset4*)p;
        r->start = conv(r->start);
        r->end = conv(r->end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_RUNTIME:
      case CUPTI_ACTIVITY_KIND_DRIVER: {
        auto* r = (CUpti_ActivityAPI*)p;
        r->start = conv(r->start);
        r->end = conv(r->end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: {
        auto* r = (CUpti_ActivitySynchronization*)p;
        r->start = conv(r->start);
        r->end = conv(r->end);
        break;
      }
    }
    p += record_size(kind);
  }
}
Api::Api(int d, u32 c) : domain(d), cbid(c) {
  t0 = real();
  corr = __atomic_fetch_add(&next_corr, 1, __ATOMIC_RELAXED);
  saved = current_corr;
  current_corr = corr;
}
Api::~Api() {
  current_corr = saved;
  u32 kind = domain == RUNTIME ? CUPTI_ACTIVITY_KIND_RUNTIME : CUPTI_ACTIVITY_KIND_DRIVER;
  if (!kinds[kind] || (off_apis[domain].count(cbid))) return;
  struct After {
    ~After() {
      if (on_record) on_record();
    }
  } after;
  Lock l;
  if (kinds[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION] && externals)
    for (auto& [k, v] : *externals)
      if (!v.empty()) {
        CUpti_ActivityExternalCorrelation r{};
        r.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
        r.externalKind = (CUpti_ExternalCorrelationKind)k;
        r.externalId = v.back();
        r.correlationId = corr;
        put(r);
      }
  CUpti_ActivityAPI r{};
  r.kind = (CUpti_ActivityKind)kind;
  r.cbid = cbid;
  r.start = t0;
  r.end = real();
  r.processId = getpid();
  r.threadId = (u32)pthread_self();
  r.correlationId = corr;
  r.returnValue = ret;
  put(r);
}
static void sync_record(u32 type, u64 start, u32 stream, u32 ev) {
  if (!kinds[CUPTI_ACTIVITY_KIND_SYNCHRONIZATION]) return;
  Lock l;
  CUpti_ActivitySynchronization r{};
  r.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
  r.type = (CUpti_ActivitySynchronizationType)type;
  r.start = start;
  r.end = real();
  r.correlationId = current_corr;
  r.contextId = 1;
  r.streamId = stream;
  r.cudaEventId = ev;
  put(r);
}

// ---- what is computed, by Python, over the same memory (see compute/)
typedef void (*compute_fn)(u64);
static compute_fn compute = nullptr;  // set: kernels are computed, so no result may come from anywhere else
static std::vector<u64>* dropped = new std::vector<u64>;
static std::atomic<u64> changes{0};  // of what memory holds
static struct {
  void* dst;
  const void* src;
  size_t bytes;
  u64 changes;
} last_copy;
static thread_local int scope = 0;        // inside an op that Python computes
static thread_local int64_t answer = -1;  // the count that the op in progress reads back
static std::string* uncomputed = new std::string;
Token::~Token() {
  Lock l;
  dropped->push_back(id);
}
extern "C" {
void fakecuda_set_compute(compute_fn f) { compute = f; }
void fakecuda_changed() { changes++; }
void fakecuda_pause(u64 ns) { paused += ns; }
void fakecuda_scope(int change) { scope += change; }
void fakecuda_answer(int64_t n) { answer = n; }
// Whether the stream captures; if so, the graph calls back with the number at this place of each replay.
int fakecuda_captured(void* s, u64 id) {
  Lock l;
  Stream* q = stream((cudaStream_t)s);
  if (!q->cap) return 0;
  if (q->cap->invalid) return 1;
  if (!id) return 1;
  Node n;
  n.type = N_COMPUTE;
  n.compute = std::make_shared<Token>(id);
  Node* p = add_node(q->cap->graph, std::move(n), q->deps);
  q->deps = {p};
  return 1;
}
// Numbers that no graph holds any more, one for each call; 0: none.
u64 fakecuda_dropped() {
  Lock l;
  if (dropped->empty()) return 0;
  u64 id = dropped->back();
  dropped->pop_back();
  return id;
}
// The first kernel that no op computed, and forget it; null: none.
const char* fakecuda_uncomputed() {
  static thread_local std::string name;
  Lock l;
  name = *uncomputed;
  uncomputed->clear();
  return name.empty() ? nullptr : name.c_str();
}
int fakecuda_mapped(const void* p, size_t n) {
  Block b;
  return find_block(p, &b) && (uintptr_t)p + n <= b.base + b.size;
}
}
static void note_uncomputed(const char* name) {
  if (compute && !scope && uncomputed->empty() && !strstr(name, "spin_kernel")) *uncomputed = name;
}

// ---- work on a stream
// Kernels compute nothing, so a count read back (nonzero, unique, masked_select) would be whatever the memory held
// before: 0 instead.
static bool counted = false;
static void note_count(const char* n) {
  static const char* words[] = {
      "DeviceReduceSingleTile", "DeviceSelect", "DeviceCompact",       "flag_kernel", "DeviceRunLength",
      "DeviceReduceKernel",     "UniqueByKey",  "compute_num_nonzero", "DeviceScan"};
  for (auto* w : words)
    if (strstr(n, w)) counted = true;
}
static u64 model_ns(const Kernel& k) {
  if (k.dur) return k.dur;
  static double fixed = getenv("FAKECUDA_KERNEL_US") ? atof(getenv("FAKECUDA_KERNEL_US")) : 0;
  if (fixed > 0) return (u64)(fixed * 1000);
  double threads = (double)k.g[0] * k.g[1] * k.g[2] * k.b[0] * k.b[1] * k.b[2];
  return 1800 + (u64)(threads * 32 / 2500.0);  // 4 floats read and written by a thread, at 2.5 TB/s
}
static u64 begin_at(Stream* s, u64 earliest) {
  u64 t = std::max(earliest, s->ready);
  if (s == stream(0)) {
    for (Stream* o : streams)
      if (!(o->flags & cudaStreamNonBlocking)) t = std::max(t, o->ready);
  } else if (!(s->flags & cudaStreamNonBlocking))
    t = std::max(t, stream(0)->ready);
  return t;
}
static void run_kernel(Stream* s, const Kernel& k, u64 earliest, u32 graph, u64 node) {
  note_count(k.name);
  changes++;
  u64 start = begin_at(s, earliest), end = start + model_ns(k);
  s->ready = end + (graph ? 0 : GAP_NS);
  if (logfile())
    fprintf(logfile(), "KERNEL stream=%u graph=%u grid=%u,%u,%u block=%u,%u,%u smem=%u %s\n", s->id, graph, k.g[0],
            k.g[1], k.g[2], k.b[0], k.b[1], k.b[2], k.dyn_smem, k.name),
        fflush(logfile());
  if (!kinds[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL] && !kinds[CUPTI_ACTIVITY_KIND_KERNEL]) return;
  CUpti_ActivityKernel9 r;
  memset(&r, 0, sizeof r);
  r.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  r.start = start + paused;
  r.end = end + paused;
  r.deviceId = 0;
  r.contextId = 1;
  r.streamId = s->id;
  r.gridX = k.g[0];
  r.gridY = k.g[1];
  r.gridZ = k.g[2];
  r.blockX = k.b[0];
  r.blockY = k.b[1];
  r.blockZ = k.b[2];
  r.clusterX = k.cluster[0];
  r.clusterY = k.cluster[1];
  r.clusterZ = k.cluster[2];
  r.dynamicSharedMemory = k.dyn_smem;
  r.staticSharedMemory = k.static_smem;
  r.registersPerThread = k.regs;
  r.correlationId = current_corr;
  r.name = k.name;
  r.graphId = graph;
  r.graphNodeId = node;
  r.sharedMemoryExecuted = k.dyn_smem + k.static_smem;
  put(r);
}
static std::map<uintptr_t, Block> blocks;
static Block* block_of(const void* p) {
  auto it = blocks.upper_bound((uintptr_t)p);
  if (it == blocks.begin()) return nullptr;
  --it;
  return (uintptr_t)p < it->first + it->second.size ? &it->second : nullptr;
}
static u32 mem_kind(const void* p) {
  Block b;
  if (!find_block(p, &b)) return CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
  return b.type == cudaMemoryTypeDevice ? CUPTI_ACTIVITY_MEMORY_KIND_DEVICE : CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
}
static u64 run_copy(Stream* s, const Node& n, u64 earliest, u32 graph) {
  bool d_src = n.src_kind == CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, d_dst = n.dst_kind == CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  u64 begin = real();
  if (n.dst == last_copy.dst && n.src == last_copy.src && n.bytes == last_copy.bytes && changes == last_copy.changes) {
    // the same again with nothing in between: as when a copy is timed
  } else if (compute && answer >= 0 && d_src && !d_dst && n.bytes <= 8) {
    memcpy(n.dst, &answer, n.bytes);
  } else if (!compute && counted && d_src && !d_dst && n.bytes <= 8) {
    memset(n.dst, 0, n.bytes);
    counted = false;
  } else if (!compute && d_src && d_dst) {  // pages never written hold zeros: nothing to copy, and no time lost
    Block *a = block_of(n.src), *b = block_of(n.dst);
    if (a->dirty || b->dirty) {
      memmove(n.dst, n.src, n.bytes);
      b->dirty = true;
    }
  } else {
    memmove(n.dst, n.src, n.bytes);
    if (d_dst) block_of(n.dst)->dirty = true;
  }
  last_copy = {n.dst, n.src, n.bytes, ++changes};
  if (compute) paused += real() - begin;
  double gbs =
      d_src && d_dst                                                                                             ? 1350
      : (n.src_kind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE || n.dst_kind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE) ? 6
                                                                                                                 : 50;
  u64 start = begin_at(s, earliest), end = start + 1200 + (u64)(n.bytes / gbs);
  s->ready = end + (graph ? 0 : GAP_NS);
  if (logfile())
    fprintf(logfile(), "MEMCPY stream=%u graph=%u bytes=%zu %s->%s\n", s->id, graph, n.bytes, d_src ? "D" : "H",
            d_dst ? "D" : "H"),
        fflush(logfile());
  if (!kinds[CUPTI_ACTIVITY_KIND_MEMCPY]) return end;
  CUpti_ActivityMemcpy5 r;
  memset(&r, 0, sizeof r);
  r.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  r.copyKind = d_src && d_dst ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOD
               : d_dst        ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD
               : d_src        ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
                              : CUPTI_ACTIVITY_MEMCPY_KIND_HTOH;
  r.srcKind = n.src_kind;
  r.dstKind = n.dst_kind;
  r.flags = CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC;
  r.bytes = n.bytes;
  r.start = start + paused;
  r.end = end + paused;
  r.contextId = 1;
  r.streamId = s->id;
  r.correlationId = current_corr;
  r.graphId = graph;
  r.graphNodeId = n.id;
  put(r);
  return end;
}
static void run_set(Stream* s, const Node& n, u64 earliest, u32 graph) {
  {
    Block* b = block_of(n.dst);
    changes++;
    if (compute || !b || b->dirty || n.value) {
      memset(n.dst, n.value, n.bytes);
      if (b && n.value) b->dirty = true;
    }
  }
  u64 start = begin_at(s, earliest), end = start + 1000 + (u64)(n.bytes / 2500.0);
  s->ready = end + (graph ? 0 : GAP_NS);
  if (logfile()) fprintf(logfile(), "MEMSET stream=%u graph=%u bytes=%zu\n", s->id, graph, n.bytes), fflush(logfile());
  if (!kinds[CUPTI_ACTIVITY_KIND_MEMSET]) return;
  CUpti_ActivityMemset4 r;
  memset(&r, 0, sizeof r);
  r.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  r.value = n.value;
  r.bytes = n.bytes;
  r.start = start + paused;
  r.end = end + paused;
  r.contextId = 1;
  r.streamId = s->id;
  r.correlationId = current_corr;
  r.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  r.graphId = graph;
  r.graphNodeId = n.id;
  put(r);
}
cudaError_t launch(Stream* s, Kernel k) {
  Lock l;
  if (!k.g[0] || !k.g[1] || !k.g[2] || !k.b[0] || !k.b[1] || !k.b[2] || (u64)k.b[0] * k.b[1] * k.b[2] > 1024 ||
      k.g[1] > 65535 || k.g[2] > 65535 || k.b[2] > 64 || k.dyn_smem > 232448)
    return fail(k.dyn_smem > 232448 ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration);
  note_uncomputed(k.name);
  static const char* mode = getenv("FAKECUDA");
  if (mode && !strcmp(mode, "compute") && !compute) {
    fprintf(stderr, "fake CUDA device: %s is launched, and nothing was set up to compute it\n", k.name);
    abort();
  }
  if (s->cap) {
    Node n;
    n.type = N_KERNEL;
    n.k = k;
    return capture_node(s, n);
  }
  if (cudaError_t e = legacy_check(s)) return e;
  run_kernel(s, k, now() + LAUNCH_NS, 0, 0);
  return cudaSuccess;
}
cudaError_t memcpy_async(Stream* s, void* dst, const void* src, size_t n, int kind) {
  Lock l;
  Node nd;
  nd.type = N_MEMCPY;
  nd.dst = dst;
  nd.src = src;
  nd.bytes = n;
  nd.copy_kind = kind;
  nd.src_kind = mem_kind(src);
  nd.dst_kind = mem_kind(dst);
  nd.id = 0;
  if (s->cap) return capture_node(s, nd);
  if (cudaError_t e = legacy_check(s)) return e;
  if (!n) return cudaSuccess;
  run_copy(s, nd, now() + LAUNCH_NS, 0);
  return cudaSuccess;
}
cudaError_t memset_async(Stream* s, void* p, int v, size_t n) {
  Lock l;
  Node nd;
  nd.type = N_MEMSET;
  nd.dst = p;
  nd.value = v;
  nd.bytes = n;
  nd.id = 0;
  if (s->cap) return capture_node(s, nd);
  if (cudaError_t e = legacy_check(s)) return e;
  if (!n) return cudaSuccess;
  run_set(s, nd, now() + LAUNCH_NS, 0);
  return cudaSuccess;
}
cudaError_t host_call(Stream* s, std::function<void()> f) {
  {
    Lock l;
    if (s->cap) {
      Node n;
      n.type = N_HOST;
      n.host = f;
      return capture_node(s, n);
    }
  }
  f();
  return cudaSuccess;
}
cudaError_t event_record(Event* e, Stream* s, bool external) {
  Lock l;
  if (s->cap) {
    if (s->cap->invalid) return fail(cudaErrorStreamCaptureInvalidated);
    if (external) {
      Node n;
      n.type = N_EVENT_RECORD;
      n.ev = e;
      return capture_node(s, n);
    }
    if (getenv("FAKECUDA_TRACE_CAPTURED_EVENTS")) {
      void* b[40];
      fprintf(stderr, "[fakecuda] captured event %p on stream %u origin %u nodes %zu\n", (void*)e, s->id,
              s->cap->origin->id, s->cap->graph->nodes.size());
      backtrace_symbols_fd(b, backtrace(b, 40), 2);
    }
    e->cap = s->cap;
    e->cap_id = s->cap->id;
    e->nodes = s->deps;
    e->recorded = true;
    return cudaSuccess;
  }
  if (cudaError_t x = legacy_check(s)) return x;
  e->cap = 0;
  e->cap_id = 0;
  e->nodes.clear();
  e->recorded = true;
  e->stream = s->id;
  if (!e->id) e->id = next_event++;
  e->t = begin_at(s, now() + 500);
  return cudaSuccess;
}
cudaError_t stream_wait(Stream* s, Event* e, bool external) {
  Lock l;
  if (!e->recorded) return cudaSuccess;
  if (e->cap && captures.count(e->cap_id)) {
    Capture* c = e->cap;
    if (c->invalid) return fail(cudaErrorStreamCaptureInvalidated);
    if (s->cap && s->cap != c) {
      invalidate(c);
      invalidate(s->cap);
      return fail(cudaErrorStreamCaptureMerge);
    }
    if (s == stream(0)) {
      invalidate(c);
      return fail(cudaErrorStreamCaptureImplicit);
    }
    if (!s->cap) {
      s->cap = c;
      c->streams.insert(s);
      s->deps.clear();
    }
    for (Node* n : e->nodes)
      if (std::find(s->deps.begin(), s->deps.end(), n) == s->deps.end()) s->deps.push_back(n);
    return cudaSuccess;
  }
  if (e->cap) return fail(cudaErrorCapturedEvent);
  if (s->cap) {
    if (external) {
      Node n;
      n.type = N_EVENT_WAIT;
      n.ev = e;
      return capture_node(s, n);
    }
    invalidate(s->cap);
    return fail(cudaErrorStreamCaptureIsolation);
  }
  s->ready = std::max(s->ready, e->t);
  return cudaSuccess;
}
cudaError_t graph_launch(GraphExec* g, Stream* s) {
  u64 t;
  {
    Lock l;
    if (s->cap) {
      for (auto& n : g->nodes)
        if (cudaError_t e = capture_node(s, n)) return e;
      return cudaSuccess;
    }
    if (cudaError_t e = legacy_check(s)) return e;
    t = now() + LAUNCH_NS + 2000;
  }
  for (auto& n : g->nodes) {
    if (n.type == N_HOST ||
        n.type == N_COMPUTE) {  // unlocked: what is called may launch, or wait for a thread that does
      if (n.type == N_HOST)
        n.host();
      else if (compute)
        compute(n.compute->id);
      continue;
    }
    Lock l;
    switch (n.type) {
      case N_KERNEL:
        run_kernel(s, n.k, t, g->id, n.id);
        break;
      case N_MEMCPY:
        run_copy(s, n, t, g->id);
        break;
      case N_MEMSET:
        run_set(s, n, t, g->id);
        break;
      case N_EVENT_RECORD:
        n.ev->recorded = true;
        n.ev->cap = 0;
        n.ev->t = std::max(t, s->ready);
        break;
      default:
        break;
    }
    t = s->ready + GRAPH_GAP_NS;
  }
  return cudaSuccess;
}
cudaError_t sync_stream(Stream* s) {
  u64 t, t0 = real();
  {
    Lock l;
    if (s->cap) {
      invalidate(s->cap);
      return fail(cudaErrorStreamCaptureUnsupported);
    }
    if (cudaError_t e = legacy_check(s)) return e;
    if (cudaError_t e = unsafe_call()) return e;
    t = begin_at(s, 0);
  }
  wait_until(t);
  sync_record(CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE, t0, s->id, 0);
  return cudaSuccess;
}
cudaError_t sync_device() {
  u64 t = 0, t0 = real();
  {
    Lock l;
    if (!captures.empty()) {
      for (auto& [i, c] : captures) invalidate(c);
      return fail(cudaErrorStreamCaptureUnsupported);
    }
    for (Stream* s : streams) t = std::max(t, s->ready);
  }
  wait_until(t);
  sync_record(CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE, t0, (u32)CUPTI_SYNCHRONIZATION_INVALID_VALUE,
              (u32)CUPTI_SYNCHRONIZATION_INVALID_VALUE);
  return cudaSuccess;
}

// ---- memory: host pages, zero until written
static size_t used = 512u << 20;  // the context
bool find_block(const void* p, Block* out) {
  Lock l;
  auto it = blocks.upper_bound((uintptr_t)p);
  if (it == blocks.begin()) return false;
  --it;
  if ((uintptr_t)p >= it->first + it->second.size) return false;
  if (out) *out = it->second;
  return true;
}
static void* map_pages(size_t n) {
  void* p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}
cudaError_t dev_malloc(void** p, size_t n) {
  Lock l;
  *p = nullptr;
  if (!n) return cudaSuccess;
  size_t r = (n + 511) & ~size_t(511), m = (r + 4095) & ~size_t(4095);
  static size_t cap = getenv("FAKECUDA_MEM_GB") ? (size_t)(atof(getenv("FAKECUDA_MEM_GB")) * (1u << 30)) : TOTAL_MEM;
  if (used + m > cap) return fail(cudaErrorMemoryAllocation);
  void* q = map_pages(m);
  if (!q) return fail(cudaErrorMemoryAllocation);
  blocks[(uintptr_t)q] = {(uintptr_t)q, m, cudaMemoryTypeDevice, false};
  used += m;
  *p = q;
  return cudaSuccess;
}
cudaError_t dev_free(void* p) {
  if (!p) return cudaSuccess;
  Lock l;
  auto it = blocks.find((uintptr_t)p);
  if (it == blocks.end() || it->second.type != cudaMemoryTypeDevice) return fail(cudaErrorInvalidValue);
  used -= it->second.size;
  munmap(p, it->second.size);
  blocks.erase(it);
  return cudaSuccess;
}
cudaError_t host_malloc(void** p, size_t n) {
  Lock l;
  size_t m = (std::max(n, size_t(1)) + 4095) & ~size_t(4095);
  void* q = map_pages(m);
  if (!q) return fail(cudaErrorMemoryAllocation);
  blocks[(uintptr_t)q] = {(uintptr_t)q, m, cudaMemoryTypeHost, false};
  *p = q;
  return cudaSuccess;
}
cudaError_t host_free(void* p) {
  if (!p) return cudaSuccess;
  Lock l;
  auto it = blocks.find((uintptr_t)p);
  if (it == blocks.end()) return fail(cudaErrorInvalidValue);
  munmap(p, it->second.size);
  blocks.erase(it);
  return cudaSuccess;
}
void host_register(void* p, size_t n) {
  Lock l;
  blocks[(uintptr_t)p] = {(uintptr_t)p, n, cudaMemoryTypeHost, false};
}
bool host_unregister(void* p) {
  Lock l;
  return blocks.erase((uintptr_t)p);
}
void mem_info(size_t* f, size_t* t) {
  Lock l;
  *t = TOTAL_MEM;
  *f = TOTAL_MEM > used ? TOTAL_MEM - used : 0;
}

// ---- the device
void init_props(cudaDeviceProp* p) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, getenv("FAKECUDA_NAME") ? getenv("FAKECUDA_NAME") : "NVIDIA H100 80GB HBM3");
  memcpy(p->uuid.bytes, "fake-h100-000000", 16);
  p->totalGlobalMem = TOTAL_MEM;
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024;
  int d[3] = {1024, 1024, 64}, g[3] = {2147483647, 65535, 65535};
  memcpy(p->maxThreadsDim, d, sizeof d);
  memcpy(p->maxGridSize, g, sizeof g);
  p->totalConstMem = 65536;
  p->major = 9;
  p->minor = 0;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->multiProcessorCount = 132;
  p->integrated = 0;
  p->canMapHostMemory = 1;
  p->concurrentKernels = 1;
  p->ECCEnabled = 1;
  p->pciBusID = 0x1b;
  p->asyncEngineCount = 3;
  p->unifiedAddressing = 1;
  p->memoryBusWidth = 5120;
  p->l2CacheSize = 52428800;
  p->persistingL2CacheMaxSize = 32768000;
  p->maxThreadsPerMultiProcessor = 2048;
  p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = 1;
  p->localL1CacheSupported = 1;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerMultiprocessor = 65536;
  p->managedMemory = 1;
  p->concurrentManagedAccess = 1;
  p->computePreemptionSupported = 1;
  p->canUseHostPointerForRegisteredMem = 1;
  p->cooperativeLaunch = 1;
  p->sharedMemPerBlockOptin = 232448;
  p->pageableMemoryAccess = 0;
  p->maxBlocksPerMultiProcessor = 32;
  p->accessPolicyMaxWindowSize = 134213632;
  p->reservedSharedMemPerBlock = 1024;
  p->hostRegisterSupported = 1;
  p->sparseCudaArraySupported = 1;
  p->memoryPoolsSupported = 1;
  p->clusterLaunch = 1;
  p->unifiedFunctionPointers = 1;
}
int device_attribute(int a) {
  cudaDeviceProp p;
  init_props(&p);
  switch (a) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return 49152;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return 1980000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return 2619000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return 5120;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return 52428800;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return 0;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return 233472;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return 232448;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return 32;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return 0x1b;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
      return 2;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
      return 65536;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      return 2147483647;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
      return 512;
  }
  return 0;
}
}  // namespace fk
