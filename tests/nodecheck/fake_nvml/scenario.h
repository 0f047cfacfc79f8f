/* What the fake NVML shows: a table of `key=value` lines, read anew by each nvmlInit. */
#ifndef FAKE_NVML_SCENARIO_H
#define FAKE_NVML_SCENARIO_H

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define FUNCTION_NOT_FOUND 13
#define GPU_IS_LOST 15
#define OPERATING_SYSTEM 17

#define NOTHING (-1)

/* Reads `scenario` from this library's own folder. */
void scenario_load(void);

/* The value for one GPU (`gpu.3.KEY`), else for all (`gpu.*.KEY`), else `otherwise`. */
const char *scenario_text(int gpu, const char *key, const char *otherwise);
long long scenario_number(int gpu, const char *key, long long otherwise);

/* A value of the node itself (`KEY`), else `otherwise`. */
const char *scenario_of_node(const char *key, const char *otherwise);

/* Changes a value of one GPU, in the file too, so that it outlives this process. */
int scenario_set(int gpu, const char *key, long long value);

/* What a call returns before it looks at anything: success, or the error that the scenario names for it. May not return:
   `call.NAME=hang` (for all) or `gpu.3.call.NAME=hang` sleeps for ever, `hang_in_kernel` does so uninterruptibly,
   `crash` ends the process. */
int scenario_call(int gpu, const char *name);

#endif
