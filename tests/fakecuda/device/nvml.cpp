// libnvidia-ml.so.1: enough for torch.cuda.device_count() and c10.
#include <cstdio>
#include <cstdlib>
#include <cstring>
extern "C" {
int nvmlInit() { return 0; }
int nvmlInit_v2() { return 0; }
int nvmlInitWithFlags(unsigned) { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* n) {
  *n = 1;
  return 0;
}
int nvmlDeviceGetCount(unsigned* n) {
  *n = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** h) {
  if (i) return 2;
  *h = (void*)1;
  return 0;
}
int nvmlDeviceGetHandleByIndex(unsigned i, void** h) { return nvmlDeviceGetHandleByIndex_v2(i, h); }
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** h) {
  *h = (void*)1;
  return 0;
}
int nvmlDeviceGetUUID(void*, char* s, unsigned n) {
  snprintf(s, n, "GPU-66616b65-2d68-3130-302d-303030303030");
  return 0;
}
int nvmlDeviceGetName(void*, char* s, unsigned n) {
  snprintf(s, n, "NVIDIA H100 80GB HBM3");
  return 0;
}
int nvmlSystemGetDriverVersion(char* s, unsigned n) {
  snprintf(s, n, "580.65.06");
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* v) {
  *v = 13000;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* n, void*) {
  *n = 0;
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, unsigned*) { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return 3; }
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 3; }
const char* nvmlErrorString(int) { return "Not Supported"; }
}
