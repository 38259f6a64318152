// Core of the fake CUDA device: virtual GPU clock, streams, events, captures, graphs, memory, activity records.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>
namespace fk {
typedef uint64_t u64;
typedef uint32_t u32;
extern std::recursive_mutex mu;
struct Lock {
  Lock() { mu.lock(); }
  ~Lock() { mu.unlock(); }
};
u64 now();   // the device's clock: stands while Python computes
u64 real();  // the host's
void wait_until(u64 t);

struct Func {  // a __global__ function
  std::string name;
  int max_threads = 1024, regs = 32, static_smem = 0, max_dyn_smem = 49152;
};
struct Kernel {
  const char* name = "";
  u32 g[3] = {1, 1, 1}, b[3] = {1, 1, 1}, cluster[3] = {0, 0, 0};
  u32 dyn_smem = 0, static_smem = 0, regs = 32;
  u64 dur = 0;  // ns, 0: the model decides
};
enum NodeType { N_KERNEL, N_MEMCPY, N_MEMSET, N_HOST, N_EMPTY, N_EVENT_RECORD, N_EVENT_WAIT, N_COMPUTE };
struct Event;
// What a captured op computes: the number that Python knows it by, told back once no graph holds it any more.
struct Token {
  u64 id;
  explicit Token(u64 id) : id(id) {}
  ~Token();
};
struct Node {
  NodeType type;
  Kernel k;
  void* dst = 0;
  const void* src = 0;
  size_t bytes = 0;
  int copy_kind = 0;
  int value = 0;
  u32 src_kind = 0, dst_kind = 0;
  std::function<void()> host;
  Event* ev = 0;
  std::shared_ptr<Token> compute;
  std::vector<Node*> deps;
  u64 id;
};
struct Graph {
  std::vector<Node*> nodes;
  u32 id;
  int refs = 1;
};
struct GraphExec {
  std::vector<Node> nodes;
  u32 id;
};
struct Stream;
struct Capture {
  Graph* graph;
  u64 id;
  cudaStreamCaptureMode mode;
  Stream* origin;
  long thread;
  bool invalid = false;
  std::set<Stream*> streams;
  bool own_graph = true;
};
struct Stream {
  u32 id = 0;
  unsigned flags = 0;
  int priority = 0;
  u64 ready = 0;
  Capture* cap = 0;
  std::vector<Node*> deps;
};
struct Event {
  unsigned flags = 0;
  bool recorded = false;
  u64 t = 0;
  u32 id = 0;
  u32 stream = 0;
  Capture* cap = 0;
  u64 cap_id = 0;
  std::vector<Node*> nodes;
};
Stream* stream(cudaStream_t s);  // handles 0, 1, 2 are the default streams
Stream* new_stream(unsigned flags, int priority);
void free_stream(Stream* s);
bool live(Stream* s);
extern std::set<Stream*> streams;
extern std::map<u64, Capture*> captures;  // active ones

cudaError_t fail(cudaError_t e);  // remembers the last error
cudaError_t last_error(bool clear);
cudaError_t unsafe_call();  // a call that may not happen during a capture (cudaMalloc, cudaMemcpy, ...)
cudaError_t sync_stream(Stream* s);
cudaError_t sync_device();
void invalidate(Capture* c);
void end_capture_state(Capture* c);
extern thread_local cudaStreamCaptureMode thread_mode;
long tid();

cudaError_t launch(Stream* s, Kernel k);
cudaError_t memcpy_async(Stream* s, void* dst, const void* src, size_t n, int kind);
cudaError_t memset_async(Stream* s, void* p, int v, size_t n);
cudaError_t host_call(Stream* s, std::function<void()> f);
cudaError_t event_record(Event* e, Stream* s, bool external);
cudaError_t stream_wait(Stream* s, Event* e, bool external);
cudaError_t graph_launch(GraphExec* g, Stream* s);
cudaError_t begin_capture(Stream* s, cudaStreamCaptureMode m, Graph* into);
cudaError_t end_capture(Stream* s, Graph** out);
Graph* new_graph();
Node* add_node(Graph* g, Node n, const std::vector<Node*>& deps);
void free_graph(Graph* g);

cudaError_t dev_malloc(void** p, size_t n);
cudaError_t dev_free(void* p);
cudaError_t host_malloc(void** p, size_t n);
cudaError_t host_free(void* p);
void host_register(void* p, size_t n);
bool host_unregister(void* p);
struct Block {
  uintptr_t base;
  size_t size;
  int type;
  bool dirty = false;
};  // type: cudaMemoryType
bool find_block(const void* p, Block* out);
void mem_info(size_t* free_, size_t* total);
const size_t TOTAL_MEM = 85029158912ull;  // as an H100 80GB HBM3 reports

// A call of the runtime or driver API, as CUPTI sees it
enum { RUNTIME = 0, DRIVER = 1 };
struct Api {
  int domain;
  u32 cbid;
  u64 t0;
  u32 corr;
  u32 saved;
  int ret = 0;
  Api(int domain, u32 cbid);
  ~Api();
};
// CUPTI side
extern bool kinds[128];
extern std::set<u32> off_apis[2];
void push_external(u32 kind, u64 id);
bool pop_external(u32 kind, u64* id);
typedef u64 (*clock_fn)();
void set_clock(clock_fn f);
u64 clock_now();
extern void (*on_record)();                 // told after a record was made, without the lock
void take_records(std::vector<char>& out);  // records with times converted to the registered clock
size_t record_size(u32 kind);
void init_props(cudaDeviceProp* p);
int device_attribute(int attr);
extern "C" long fk_stub(const char* name);
bool verbose();
}  // namespace fk
