// libcupti.so.13: the activity API that Kineto uses.
#include <cuda.h>
#include <cupti.h>

#include <cstdlib>
#include <cstring>

#include "cbids.h"
#include "core.h"
using namespace fk;
static CUpti_BuffersCallbackRequestFunc on_request;
static CUpti_BuffersCallbackCompleteFunc on_complete;
static std::mutex buffer_mu;
static uint8_t* held;
static size_t held_size;
static bool any() {
  for (bool k : kinds)
    if (k) return true;
  return false;
}
// As CUPTI does: a buffer is asked for with the first record (Kineto flushes only once it gave one out)
static void want_buffer() {
  std::lock_guard<std::mutex> l(buffer_mu);
  if (held || !on_request || !any()) return;
  size_t most = 0;
  on_request(&held, &held_size, &most);
}
extern "C" {
CUptiResult cuptiGetVersion(uint32_t* v) {
  *v = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult r, const char** s) {
  *s = r ? "CUPTI_ERROR_UNKNOWN" : "CUPTI_SUCCESS";
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetTimestamp(uint64_t* t) {
  *t = clock_now();
  return CUPTI_SUCCESS;
}
static bool denied() { return getenv("FAKECUDA_CUPTI_DENIED"); }  // as where counters are for root only
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* h, CUpti_CallbackFunc, void*) {
  if (denied()) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  *h = (CUpti_SubscriberHandle)1;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc f) {
  set_clock(f);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc r, CUpti_BuffersCallbackCompleteFunc c) {
  on_request = r;
  on_complete = c;
  on_record = want_buffer;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind k) {
  if (denied()) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  if (k < 128) kinds[k] = true;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind k) {
  if (k < 128) kinds[k] = false;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableRuntimeApi(uint32_t id, uint8_t on) {
  if (on)
    off_apis[RUNTIME].erase(id);
  else
    off_apis[RUNTIME].insert(id);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableDriverApi(uint32_t id, uint8_t on) {
  if (on)
    off_apis[DRIVER].erase(id);
  else
    off_apis[DRIVER].insert(id);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind k, uint64_t id) {
  push_external(k, id);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind k, uint64_t* id) {
  return pop_external(k, id) ? CUPTI_SUCCESS : CUPTI_ERROR_QUEUE_EMPTY;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* n) {
  *n = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t) {
  std::vector<char> all;
  take_records(all);
  if (!on_request || !on_complete) return CUPTI_SUCCESS;
  for (size_t at = 0; at < all.size();) {
    uint8_t* buf = nullptr;
    size_t size = 0, most = 0, n = 0;
    {
      std::lock_guard<std::mutex> l(buffer_mu);
      if (held) {
        buf = held;
        size = held_size;
        held = nullptr;
      }
    }
    if (!buf) on_request(&buf, &size, &most);
    if (!buf) break;
    size_t start = at;
    for (;;) {
      if (at >= all.size()) break;
      size_t s = record_size(*(u32*)&all[at]);
      if (n + s > size) break;
      n += s;
      at += s;
    }
    if (at == start) break;
    memcpy(buf, &all[start], n);
    on_complete(nullptr, 0, buf, size, n);
  }
  uint8_t* left = nullptr;
  size_t left_size = 0;
  {
    std::lock_guard<std::mutex> l(buffer_mu);
    std::swap(left, held);
    left_size = held_size;
  }
  if (left) on_complete(nullptr, 0, left, left_size, 0);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* buf, size_t n, CUpti_Activity** r) {
  char* p = *r ? (char*)*r + record_size((*r)->kind) : (char*)buf;
  if (p + 4 > (char*)buf + n) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *r = (CUpti_Activity*)p;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain d, uint32_t id, const char** name) {
  if (d == CUPTI_CB_DOMAIN_RUNTIME_API) {
    for (auto& x : runtime_names)
      if (x.id == id) {
        *name = x.name;
        return CUPTI_SUCCESS;
      }
  } else
    for (auto& x : driver_names)
      if (x.id == id) {
        *name = x.name;
        return CUPTI_SUCCESS;
      }
  *name = "INVALID";
  return CUPTI_ERROR_INVALID_PARAMETER;
}
CUptiResult cuptiGetDeviceId(CUcontext, uint32_t* d) {
  *d = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetContextId(CUcontext, uint32_t* d) {
  *d = 1;
  return CUPTI_SUCCESS;
}
}
