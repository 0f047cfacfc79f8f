/* A libnvidia-ml.so.1 without a GPU: the calls that slurm_robust makes, answered from a scenario file.

   Written from NVML's documented interface. Only what a caller can see is imitated: versions of structures, sizes, the
   two-step calls that first tell a size, and errors. Without a line in the scenario it is a node of eight healthy, idle
   H100 SXM. A value of `-` is "not supported". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scenario.h"

typedef void *Device;

static int index_of(Device device)
{
    return (int)(long)device - 1;
}

static int gpus(void)
{
    return atoi(scenario_of_node("gpus", "8"));
}

#define ENTER(device)                                                                                                  \
    int gpu = index_of(device);                                                                                        \
    int said;                                                                                                          \
    if (gpu < 0 || gpu >= gpus())                                                                                      \
        return INVALID_ARGUMENT;                                                                                       \
    said = scenario_call(gpu, __func__);                                                                               \
    if (said != SUCCESS)                                                                                               \
    return said

static int number(int gpu, const char *key, long long otherwise, long long *out)
{
    const char *text = scenario_text(gpu, key, NULL);
    if (text != NULL && strcmp(text, "-") == 0)
        return NOT_SUPPORTED;
    if (text == NULL && otherwise == NOTHING)
        return NOT_SUPPORTED;
    *out = scenario_number(gpu, key, otherwise);
    return SUCCESS;
}

static int unsigned_number(int gpu, const char *key, long long otherwise, unsigned int *out)
{
    long long value = 0;
    int said = number(gpu, key, otherwise, &value);
    *out = (unsigned int)value;
    return said;
}

static int text(int gpu, const char *key, const char *otherwise, char *out, unsigned int size)
{
    const char *value = scenario_text(gpu, key, otherwise);
    if (strcmp(value, "-") == 0)
        return NOT_SUPPORTED;
    if (strlen(value) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

/* A call that gives one number: NAME(device, &number). */
#define ONE(NAME, KEY, OTHERWISE)                                                                                      \
    int NAME(Device device, unsigned int *out)                                                                         \
    {                                                                                                                  \
        ENTER(device);                                                                                                 \
        return unsigned_number(gpu, KEY, OTHERWISE, out);                                                              \
    }

/* A call that gives two numbers, the second being the first unless the scenario says so. */
#define TWO(NAME, KEY, OTHERWISE, KEY2)                                                                                \
    int NAME(Device device, unsigned int *out, unsigned int *out2)                                                     \
    {                                                                                                                  \
        ENTER(device);                                                                                                 \
        said = unsigned_number(gpu, KEY, OTHERWISE, out);                                                              \
        if (said == SUCCESS)                                                                                           \
            said = unsigned_number(gpu, KEY2, *out, out2);                                                             \
        return said;                                                                                                   \
    }

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    scenario_load();
    return scenario_call(NOTHING, __func__);
}

int nvmlShutdown(void)
{
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    static char words[32];
    snprintf(words, sizeof words, "fake error %d", code);
    return words;
}

int nvmlSystemGetDriverVersion(char *out, unsigned int size)
{
    int said = scenario_call(NOTHING, __func__);
    snprintf(out, size, "%s", scenario_of_node("driver", "570.124.06"));
    return said;
}

int nvmlSystemGetCudaDriverVersion(int *out)
{
    *out = atoi(scenario_of_node("cuda", "12080"));
    return scenario_call(NOTHING, __func__);
}

int nvmlDeviceGetCount_v2(unsigned int *out)
{
    *out = (unsigned int)gpus();
    return scenario_call(NOTHING, __func__);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device *out)
{
    if ((int)index >= gpus())
        return INVALID_ARGUMENT;
    *out = (Device)(long)(index + 1);
    return scenario_call((int)index, __func__);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *out)
{
    int said = scenario_call(NOTHING, __func__);
    if (said != SUCCESS)
        return said;
    if (strstr(scenario_of_node("instances", ""), uuid) == NULL)
        return 6; /* NOT_FOUND */
    *out = (Device)(long)1;
    return SUCCESS;
}

struct pci {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(Device device, struct pci *out)
{
    ENTER(device);
    memset(out, 0, sizeof *out);
    out->bus = (unsigned int)(0x1b + 0x10 * gpu) & 0xff;
    out->id = 0x233010de;
    snprintf(out->bus_id, sizeof out->bus_id, "%s", scenario_text(gpu, "bus", ""));
    if (out->bus_id[0] == '\0')
        snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device device, char *out, unsigned int size)
{
    char otherwise[64];
    ENTER(device);
    snprintf(otherwise, sizeof otherwise, "GPU-00000000-0000-4000-8000-%012d", gpu);
    return text(gpu, "uuid", otherwise, out, size);
}

int nvmlDeviceGetName(Device device, char *out, unsigned int size)
{
    ENTER(device);
    return text(gpu, "name", "NVIDIA H100 80GB HBM3", out, size);
}

int nvmlDeviceGetVbiosVersion(Device device, char *out, unsigned int size)
{
    ENTER(device);
    return text(gpu, "vbios", "96.00.99.00.01", out, size);
}

int nvmlDeviceGetInforomImageVersion(Device device, char *out, unsigned int size)
{
    ENTER(device);
    return text(gpu, "inforom", "G520.0200.00.05", out, size);
}

int nvmlDeviceGetGspFirmwareVersion(Device device, char *out)
{
    ENTER(device);
    return text(gpu, "gsp.version", scenario_of_node("driver", "570.124.06"), out, 64);
}

int nvmlDeviceGetMinorNumber(Device device, unsigned int *out)
{
    ENTER(device);
    return unsigned_number(gpu, "minor", gpu, out);
}

ONE(nvmlDeviceGetPersistenceMode, "persistence", 1)
ONE(nvmlDeviceGetComputeMode, "compute_mode", 0)
ONE(nvmlDeviceGetPerformanceState, "pstate", 0)
ONE(nvmlDeviceGetRetiredPagesPendingStatus, "retired.pending", NOTHING)
ONE(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation", 5)
ONE(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width", 16)
ONE(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.max_generation", 5)
ONE(nvmlDeviceGetMaxPcieLinkWidth, "pcie.max_width", 16)
ONE(nvmlDeviceGetPcieReplayCounter, "pcie.replays", 0)
ONE(nvmlDeviceGetPowerUsage, "power.usage", 71000)
ONE(nvmlDeviceGetPowerManagementLimit, "power.limit", 700000)
ONE(nvmlDeviceGetEnforcedPowerLimit, "power.enforced", 700000)
ONE(nvmlDeviceGetPowerManagementDefaultLimit, "power.default", 700000)
ONE(nvmlDeviceGetNumGpuCores, "cores", 16896)
TWO(nvmlDeviceGetEccMode, "ecc.mode", 1, "ecc.pending")
TWO(nvmlDeviceGetMigMode, "mig.mode", 0, "mig.pending")
TWO(nvmlDeviceGetGspFirmwareMode, "gsp.mode", 1, "gsp.default")

static int reasons(int gpu, unsigned long long *out)
{
    long long value = 0;
    int said = number(gpu, "clocks.reasons", 1, &value);
    *out = (unsigned long long)value;
    return said;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *out)
{
    ENTER(device);
    return reasons(gpu, out);
}

/* The older name of the same call. */
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long *out)
{
    ENTER(device);
    return reasons(gpu, out);
}

static int of_kind(int gpu, const char *kind, unsigned int which, long long otherwise, unsigned int *out)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%u", kind, which);
    return unsigned_number(gpu, key, otherwise, out);
}

int nvmlDeviceSetPersistenceMode(Device device, unsigned int mode)
{
    ENTER(device);
    return scenario_set(gpu, "persistence", mode);
}

int nvmlDeviceSetApplicationsClocks(Device device, unsigned int memory, unsigned int sm)
{
    ENTER(device);
    said = scenario_set(gpu, "clock.application.2", memory);
    return said != SUCCESS ? said : scenario_set(gpu, "clock.application.1", sm);
}

/* Clocks: 1 SM, 2 memory. */
int nvmlDeviceGetClockInfo(Device device, unsigned int which, unsigned int *out)
{
    ENTER(device);
    return of_kind(gpu, "clock", which, which == 2 ? 2619 : 345, out);
}

int nvmlDeviceGetMaxClockInfo(Device device, unsigned int which, unsigned int *out)
{
    ENTER(device);
    return of_kind(gpu, "clock.max", which, which == 2 ? 2619 : 1980, out);
}

int nvmlDeviceGetApplicationsClock(Device device, unsigned int which, unsigned int *out)
{
    ENTER(device);
    return of_kind(gpu, "clock.application", which, which == 2 ? 2619 : 1980, out);
}

int nvmlDeviceGetDefaultApplicationsClock(Device device, unsigned int which, unsigned int *out)
{
    ENTER(device);
    return of_kind(gpu, "clock.default", which, which == 2 ? 2619 : 1980, out);
}

int nvmlDeviceGetTemperature(Device device, unsigned int sensor, unsigned int *out)
{
    (void)sensor;
    ENTER(device);
    return unsigned_number(gpu, "temperature", 31, out);
}

/* Thresholds: 0 shutdown, 1 slowdown, 2 memory, 3 highest in use. */
int nvmlDeviceGetTemperatureThreshold(Device device, unsigned int which, unsigned int *out)
{
    static const long long otherwise[] = {92, 89, 95, 87};
    ENTER(device);
    return of_kind(gpu, "temperature.threshold", which, which < 4 ? otherwise[which] : NOTHING, out);
}

struct margin {
    unsigned int version;
    int margin;
};

int nvmlDeviceGetMarginTemperature(Device device, struct margin *out)
{
    long long value = 0;
    ENTER(device);
    said = number(gpu, "temperature.margin", 56, &value);
    out->margin = (int)value;
    return said;
}

struct rates {
    unsigned int gpu, memory;
};

int nvmlDeviceGetUtilizationRates(Device device, struct rates *out)
{
    ENTER(device);
    out->memory = 0;
    return unsigned_number(gpu, "utilization", 0, &out->gpu);
}

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

#define MIB (1024LL * 1024LL)

int nvmlDeviceGetMemoryInfo(Device device, struct memory *out)
{
    ENTER(device);
    out->total = (unsigned long long)(scenario_number(gpu, "memory.total_mib", 81559) * MIB);
    out->used = (unsigned long long)((scenario_number(gpu, "memory.used_mib", 4) + 551) * MIB);
    out->free = out->total - out->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Device device, struct memory_v2 *out)
{
    long long total = 0;
    ENTER(device);
    if (out->version != ((2U << 24) | sizeof *out))
        return 25;
    said = number(gpu, "memory.total_mib", 81559, &total);
    out->total = (unsigned long long)(total * MIB);
    out->reserved = (unsigned long long)(551 * MIB);
    out->used = (unsigned long long)(scenario_number(gpu, "memory.used_mib", 4) * MIB);
    out->free = out->total - out->reserved - out->used;
    return said;
}

struct process {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
};

/* `processes=PID:MIB,PID:MIB` */
static int processes(const char *at, unsigned int *count, struct process *out)
{
    unsigned int found = 0;
    while (*at != '\0') {
        char *end;
        unsigned long pid = strtoul(at, &end, 10);
        unsigned long mib = *end == ':' ? strtoul(end + 1, &end, 10) : 0;
        if (out != NULL && found < *count) {
            out[found].pid = (unsigned int)pid;
            out[found].used = mib * (unsigned long long)MIB;
            out[found].gpu_instance = out[found].compute_instance = 0xffffffffU;
        }
        found++;
        at = *end == ',' ? end + 1 : end + strlen(end);
    }
    if (found > *count || (out == NULL && found > 0)) {
        *count = found;
        return INSUFFICIENT_SIZE;
    }
    *count = found;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned int *count, struct process *out)
{
    ENTER(device);
    return processes(scenario_text(gpu, "processes", ""), count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned int *count, struct process *out)
{
    ENTER(device);
    return processes(scenario_text(gpu, "graphics", ""), count, out);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device device, unsigned int *count, struct process *out)
{
    ENTER(device);
    return processes(scenario_text(gpu, "mps", ""), count, out);
}

/* ERRORS: 0 corrected, 1 uncorrected. COUNTER: 0 since the driver was loaded, 1 of the board's life. */
static const char *ecc_key(unsigned int errors, unsigned int counter)
{
    static const char *keys[] = {"ecc.volatile.corrected", "ecc.aggregate.corrected", "ecc.volatile.uncorrected",
                                 "ecc.aggregate.uncorrected"};
    return keys[(errors & 1) * 2 + (counter & 1)];
}

int nvmlDeviceGetTotalEccErrors(Device device, unsigned int errors, unsigned int counter, unsigned long long *out)
{
    long long value = 0;
    ENTER(device);
    said = number(gpu, ecc_key(errors, counter), 0, &value);
    *out = (unsigned long long)value;
    return said;
}

/* PLACE: 2 DRAM (the old name is device memory), 7 SRAM; other places are of older boards. */
int nvmlDeviceGetMemoryErrorCounter(Device device, unsigned int errors, unsigned int counter, unsigned int place,
                                    unsigned long long *out)
{
    char key[64];
    long long value = 0;
    ENTER(device);
    snprintf(key, sizeof key, "%s.%u", ecc_key(errors, counter), place);
    said = number(gpu, key, place == 2 || place == 7 ? 0 : NOTHING, &value);
    *out = (unsigned long long)value;
    return said;
}

struct sram {
    unsigned int version;
    unsigned long long counts[11];
    unsigned int over;
};

int nvmlDeviceGetSramEccErrorStatus(Device device, struct sram *out)
{
    ENTER(device);
    if (out->version != ((1U << 24) | sizeof *out))
        return 25;
    memset(out->counts, 0, sizeof out->counts);
    return unsigned_number(gpu, "ecc.sram_threshold_exceeded", 0, &out->over);
}

int nvmlDeviceGetRemappedRows(Device device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending,
                              unsigned int *failed)
{
    ENTER(device);
    said = unsigned_number(gpu, "rows.corrected", 0, corrected);
    if (said != SUCCESS)
        return said;
    unsigned_number(gpu, "rows.uncorrected", 0, uncorrected);
    unsigned_number(gpu, "rows.pending", 0, pending);
    unsigned_number(gpu, "rows.failed", 0, failed);
    return SUCCESS;
}

struct histogram {
    unsigned int max, high, partial, low, none;
};

int nvmlDeviceGetRowRemapperHistogram(Device device, struct histogram *out)
{
    ENTER(device);
    said = unsigned_number(gpu, "rows.max", 2560, &out->max);
    if (said != SUCCESS)
        return said;
    unsigned_number(gpu, "rows.high", 0, &out->high);
    unsigned_number(gpu, "rows.partial", 0, &out->partial);
    unsigned_number(gpu, "rows.low", 0, &out->low);
    unsigned_number(gpu, "rows.none", 0, &out->none);
    return SUCCESS;
}

struct repair {
    unsigned int version, channel, tpc;
};

int nvmlDeviceGetRepairStatus(Device device, struct repair *out)
{
    ENTER(device);
    said = unsigned_number(gpu, "repair.channel", 0, &out->channel);
    if (said != SUCCESS)
        return said;
    return unsigned_number(gpu, "repair.tpc", 0, &out->tpc);
}

/* CAUSE: 0 several single-bit errors, 1 a double-bit error. */
int nvmlDeviceGetRetiredPages(Device device, unsigned int cause, unsigned int *count, unsigned long long *out)
{
    unsigned int pages = 0;
    unsigned int room = *count;
    ENTER(device);
    said = unsigned_number(gpu, cause == 1 ? "retired.double" : "retired.single", NOTHING, &pages);
    if (said != SUCCESS)
        return said;
    *count = pages;
    if (pages > room || out == NULL)
        return pages > 0 ? INSUFFICIENT_SIZE : SUCCESS;
    for (unsigned int at = 0; at < pages; at++)
        out[at] = 0x1000ULL * at;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(Device device, unsigned int link, unsigned int *out)
{
    char key[64];
    ENTER(device);
    if (link >= (unsigned int)scenario_number(gpu, "nvlink.count", 18))
        return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "nvlink.%u.active", link);
    return unsigned_number(gpu, key, scenario_number(gpu, "nvlink.active", 1), out);
}

int nvmlDeviceValidateInforom(Device device)
{
    ENTER(device);
    return SUCCESS;
}

struct field {
    unsigned int id, scope;
    long long stamp, latency_us;
    unsigned int type, said;
    union {
        double number;
        unsigned long long whole;
    } value;
};

/* `fi.ID=N`, or `fi.ID.LINK=N` for one link. */
int nvmlDeviceGetFieldValues(Device device, int count, struct field *out)
{
    ENTER(device);
    for (int at = 0; at < count; at++) {
        char key[64];
        long long value = 0;
        long long otherwise = NOTHING;
        snprintf(key, sizeof key, "fi.%u", out[at].id);
        if (out[at].id == 91)
            otherwise = scenario_number(gpu, "nvlink.count", 18);
        else if (out[at].id == 90)
            otherwise = 26562;
        else if (out[at].id == 82)
            otherwise = 40;
        else if (out[at].id == 230)
            otherwise = 0;
        out[at].said = (unsigned int)number(gpu, key, otherwise, &value);
        snprintf(key, sizeof key, "fi.%u.%u", out[at].id, out[at].scope);
        if (scenario_text(gpu, key, NULL) != NULL)
            out[at].said = (unsigned int)number(gpu, key, NOTHING, &value);
        out[at].type = 3;
        out[at].value.whole = (unsigned long long)value;
    }
    return SUCCESS;
}

struct fabric_v1 {
    unsigned char cluster[16];
    unsigned int status, clique, state;
};

/* The first of these calls (r525). */
int nvmlDeviceGetGpuFabricInfo(Device device, struct fabric_v1 *out)
{
    ENTER(device);
    out->status = out->clique = 0;
    said = unsigned_number(gpu, "fabric.status", 0, &out->status);
    if (said != SUCCESS)
        return said;
    return unsigned_number(gpu, "fabric.state", 3, &out->state);
}

struct fabric {
    unsigned int version;
    unsigned char cluster[16];
    unsigned int status, clique, state, health;
    unsigned char summary;
};

/* STATE: 0 not supported, 1 not started, 2 in progress, 3 completed. */
int nvmlDeviceGetGpuFabricInfoV(Device device, struct fabric *out)
{
    ENTER(device);
    if (out->version >> 24 < 2 || out->version >> 24 > (unsigned int)atoi(scenario_of_node("fabric.version", "3")))
        return 25;
    said = unsigned_number(gpu, "fabric.state", 3, &out->state);
    if (said != SUCCESS)
        return said;
    unsigned_number(gpu, "fabric.status", 0, &out->status);
    unsigned_number(gpu, "fabric.health", 0x2, &out->health);
    if (out->version >> 24 >= 3)
        out->summary = (unsigned char)scenario_number(gpu, "fabric.summary", 1);
    return SUCCESS;
}
