/* What the plugin calls of Slurm's, played: one job, one step, one environment; every word is kept. */
#ifndef SROBUST_HOST_H
#define SROBUST_HOST_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <stdint.h>

extern struct host {
	enum spank_context context;
	uint32_t job, step, task;
	int status;
	int traced; /* prctl(PR_SET_PTRACER, …ANY) calls */
	char said[16384];
} host;

/* A new slurmstepd or command: nothing set, nothing registered. */
void host_begin(enum spank_context context);

/* The job's environment. NULL for none. */
const char *host_env(const char *name);
void host_set(const char *name, const char *value);

/* Give an option as Slurm does; what its callback returned, -1000 where it is not registered. */
int host_option(const char *name, const char *value, int remote);

/* What prologs would find. NULL for nothing. */
const char *host_prolog(const char *name);

/* Free what the host itself holds. */
void host_end(void);

#endif
