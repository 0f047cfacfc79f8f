/* slurmstepd: what a batch script and the tasks of a step are given. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "contexts.h"
#include "exits.h"
#include "options.h"

/* Not in all headers. */
#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif
#ifndef PR_SET_PTRACER_ANY
#define PR_SET_PTRACER_ANY ((unsigned long)-1)
#endif

#define RECORDER_EVENTS "2000"

/* As Slurm numbers the step of a batch script. */
static const uint32_t BATCH_STEP = 0xfffffffbU;

static struct request request;

static bool is_set(spank_t sp, const char *name)
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

void stepd_post_opt(spank_t sp)
{
	uint32_t number = 0;

	request = options_effective(sp, lookup_in_job);
	if (!is_watched(&request) && options_typed()->mode == MODE_UNSET)
		return;
	options_tell_site_mistakes();
	if (spank_get_item(sp, S_JOB_STEPID, &number) != ESPANK_SUCCESS)
		return;
	if (number != BATCH_STEP) {
		if (is_watched(&request) && !is_set(sp, "SROBUST_WATCH"))
			exits_open(sp, options_site()->exits);
		return;
	}
	/* The script's environment carries sbatch's options to its sruns, also with --export=NONE. Slurm hands them on
	 * too, in variables that would come before what the script itself sets in ours: those go. */
	for (enum field field = FIELD_MODE; field < FIELDS; field++) {
		spank_unsetenv(sp, SLURM_VARIABLES[field]);
		if (value_given(&request, field) &&
		    spank_setenv(sp, FIELD_VARIABLES[field], value_text(&request, field), 1) != ESPANK_SUCCESS)
			slurm_error("robust: batch: %s could not be set", FIELD_VARIABLES[field]);
	}
}

/* PyTorch has renamed these, and reads the old names still: where the user has set either, both are the user's. */
static void give_flight_recorder(spank_t sp)
{
	static const char *const pairs[][3] = {
		{"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", RECORDER_EVENTS},
		{"TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_ON_TIMEOUT", "1"},
	};
	char pipe[64];
	uint32_t job = 0, number = 0;

	for (size_t n = 0; n < sizeof pairs / sizeof *pairs; n++) {
		if (is_set(sp, pairs[n][0]) || is_set(sp, pairs[n][1]))
			continue;
		give(sp, pairs[n][0], pairs[n][2]);
		if (n == 0)
			give(sp, pairs[n][1], pairs[n][2]);
	}
	if (is_set(sp, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE") || is_set(sp, "TORCH_FR_DUMP_PIPE_FILE") ||
	    spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_STEPID, &number) != ESPANK_SUCCESS)
		return;
	snprintf(pipe, sizeof pipe, "/tmp/srobust-%u.%u-", job, number);
	give(sp, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", pipe);
}

/* A sitecustomize of ours in front of the user's: it allows tracing to each forked child, and loads the user's. */
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
		return; /* longer than we can carry: left as it is */
	if (found == ESPANK_SUCCESS && before[0] != '\0')
		snprintf(path, sizeof path, "%s:%s", folder, before);
	else
		snprintf(path, sizeof path, "%s", folder);
	if (spank_setenv(sp, "PYTHONPATH", path, 1) == ESPANK_SUCCESS)
		give(sp, "SROBUST_SITECUSTOMIZE", folder);
}

void task_before_exec(spank_t sp)
{
	uint32_t number = 0;

	if (!is_watched(&request) || is_set(sp, "SROBUST_WATCH") ||
	    (spank_get_item(sp, S_JOB_STEPID, &number) == ESPANK_SUCCESS && number == BATCH_STEP))
		return;
	/* Kept over exec, and by this process alone. Without Yama there is nothing to allow. */
	if (prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) != 0 && errno != EINVAL)
		slurm_error("robust: task: tracing could not be allowed: %s", strerror(errno));
	if (exits_path()[0] != '\0' && spank_setenv(sp, "SROBUST_EXITS", exits_path(), 1) != ESPANK_SUCCESS)
		slurm_debug("robust: task: SROBUST_EXITS could not be set");
	give_sitecustomize(sp, options_site()->python);
	if (options_site()->flight_recorder)
		give_flight_recorder(sp);
}

void stepd_task_ended(spank_t sp)
{
	exits_note(sp);
}

void stepd_over(void)
{
	exits_close();
}
