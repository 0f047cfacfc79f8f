#include "task_env.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "options.h"

/* Small (without the GPU's memory), and the program's own error handling still gets the error. */
#define GPU_CORE_FLAGS                                                                                    \
	"skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory,"           \
	"skip_constbank_memory,skip_abort"

/* A setting, perhaps renamed: where the user has set either name, we set neither. */
struct setting {
	const char *name;
	const char *value;
	const char *other;	 /* NULL: it has one name */
	const char *other_value; /* NULL: only read; else set too: versions in use read one or the other */
};

bool is_set(spank_t sp, const char *name)
{
	char value[2];

	return lookup_in_job(sp, name, value, sizeof value);
}

static void give(spank_t sp, const char *name, const char *value)
{
	spank_err_t gave = spank_setenv(sp, name, value, 0);

	if (gave != ESPANK_SUCCESS && gave != ESPANK_ENV_EXISTS)
		slurm_error("robust: task: %s could not be set: %s", name, spank_strerror(gave));
}

static void give_setting(spank_t sp, const struct setting *setting)
{
	if (is_set(sp, setting->name) || (setting->other != NULL && is_set(sp, setting->other)))
		return;
	give(sp, setting->name, setting->value);
	if (setting->other_value != NULL)
		give(sp, setting->other, setting->other_value);
}

/* A number that nobody can guess; 0 if the system has none. */
static uint64_t random_number(void)
{
	uint64_t number = 0;
	int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return 0;
	if (read(fd, &number, sizeof number) != sizeof number)
		number = 0;
	close(fd);
	return number;
}

/* The path of this task's file in a folder for dumps; "" where the step's ids are unknown. Others may create entries
 * there, too: with a random part nobody can have made one of this name. */
static void name_file(spank_t sp, const char *folder, const char *suffix, char *out, size_t size)
{
	uint32_t job = 0, number = 0;
	uint64_t secret = random_number();

	out[0] = '\0';
	if (secret != 0 && spank_get_item(sp, S_JOB_ID, &job) == ESPANK_SUCCESS &&
	    spank_get_item(sp, S_JOB_STEPID, &number) == ESPANK_SUCCESS)
		snprintf(out, size, "%s/srobust-%u.%u-%016" PRIx64 "-%s", folder, job, number, secret, suffix);
}

/* PyTorch has renamed these, and still reads the old names. */
static void give_flight_recorder(spank_t sp, const char *dumps)
{
	char pipe[FOLDER_BYTES + 96], stem[FOLDER_BYTES + 96];
	const struct setting settings[] = {
		{"TORCH_FR_BUFFER_SIZE", "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"},
		{"TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "TORCH_FR_DUMP_ON_TIMEOUT", NULL},
		{"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", pipe, "TORCH_FR_DUMP_PIPE_FILE", NULL},
		{"TORCH_FR_DUMP_TEMP_FILE", stem, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", stem},
	};

	/* A pipe must be on the rank's own node. */
	name_file(sp, "/tmp", "", pipe, sizeof pipe);
	if (dumps[0] != '\0')
		name_file(sp, dumps, "fr-rank-", stem, sizeof stem);
	else
		stem[0] = '\0';
	for (size_t n = 0; n < sizeof settings / sizeof *settings; n++) {
		if (settings[n].value[0] != '\0')
			give_setting(sp, &settings[n]);
	}
}

/* A GPU core dump where a GPU kernel of the program faults. The operating system's core dumps (`ulimit -c`) are left
 * as they are. */
static void give_core_dumps(spank_t sp, const char *dumps)
{
	char file[FOLDER_BYTES + 96];
	const struct setting settings[] = {
		{"CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "1", NULL, NULL},
		{"CUDA_COREDUMP_FILE", file, NULL, NULL},
		{"CUDA_COREDUMP_GENERATION_FLAGS", GPU_CORE_FLAGS, "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP", "1"},
	};

	name_file(sp, dumps, "%h-%p.nvcudmp", file, sizeof file);
	if (file[0] == '\0')
		return;
	for (size_t n = 0; n < sizeof settings / sizeof *settings; n++)
		give_setting(sp, &settings[n]);
}

/* Put our sitecustomize in front of the user's: it allows each forked child to be traced, and loads the user's. */
static void give_sitecustomize(spank_t sp, const char *folder)
{
	static char before[32768], path[32768 + FOLDER_BYTES];
	char file[FOLDER_BYTES + 32];
	spank_err_t found;

	if (folder[0] == '\0' || is_set(sp, "SROBUST_SITECUSTOMIZE"))
		return;
	snprintf(file, sizeof file, "%s/sitecustomize.py", folder);
	if (access(file, R_OK) != 0) {
		slurm_debug("robust: task: %s: %s; children of ranks may not be traced", file, strerror(errno));
		return;
	}
	found = spank_getenv(sp, "PYTHONPATH", before, sizeof before);
	if (found != ESPANK_SUCCESS && found != ESPANK_ENV_NOEXIST)
		return; /* longer than our buffer: left as it is */
	if (found == ESPANK_SUCCESS && before[0] != '\0')
		snprintf(path, sizeof path, "%s:%s", folder, before);
	else
		snprintf(path, sizeof path, "%s", folder);
	if (spank_setenv(sp, "PYTHONPATH", path, 1) == ESPANK_SUCCESS)
		give(sp, "SROBUST_SITECUSTOMIZE", folder);
}

void task_env_give(spank_t sp, const struct site *site)
{
	give_sitecustomize(sp, site->python);
	if (site->flight_recorder)
		give_flight_recorder(sp, site->dumps);
	if (site->dumps[0] != '\0')
		give_core_dumps(sp, site->dumps);
}
