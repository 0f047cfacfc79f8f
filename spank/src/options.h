/* The options of sbatch, salloc and srun, and the job's request: typed, from the environment, or the site's. */
#ifndef SROBUST_OPTIONS_H
#define SROBUST_OPTIONS_H

#include <slurm/spank.h>

#include "site.h"
#include "values.h"

/* The variable of each field. A typed option takes precedence over it, and it over the site's choice. */
extern const char *const FIELD_VARIABLES[FIELDS];

/* Slurm's own variables for the same, in which it passes sbatch's options to the script. */
extern const char *const SLURM_VARIABLES[FIELDS];

/* Read the plugstack arguments and register the options; from slurm_spank_init, in every context: before Slurm looks
 * for options in the environment and on the command line. */
void options_register(spank_t sp, int ac, char **av);

/* The site's settings. */
const struct site *options_site(void);

/* Log each plugstack argument that is not allowed and so has no effect. */
void options_log_site_mistakes(void);

/* Whether any of our options was typed. */
bool options_any_typed(void);

/* Log an option that was typed and has no effect without --robust. */
void options_warn_idle(const struct request *request);

/* Finds a variable: `spank_getenv` in a task, `getenv` where a command runs. False if it is not set. */
typedef bool (*lookup_fn)(spank_t sp, const char *name, char *out, int size);

bool lookup_here(spank_t sp, const char *name, char *out, int size);
bool lookup_in_job(spank_t sp, const char *name, char *out, int size);

/* The whole request: typed, else from the environment, else the site's. A value in the environment that is not
 * allowed is logged and ignored: the job runs all the same. */
struct request options_effective(spank_t sp, lookup_fn lookup);

/* Whether the job is watched. */
bool is_watched(const struct request *request);

/* Whether this field is the job's own choice, to be passed to its shell and steps. The site's mode is not: `srobust
 * run` reads the site's robust.yaml for that. */
bool is_jobs_choice(const struct request *request, enum field field);

/* Put the job's choice into this environment, for its shell and steps. */
void options_export_here(const struct request *request);

/* Pass the job's choice to prolog and epilog: SPANK_ROBUST_MODE and, where given, SPANK_ROBUST_SPARES. */
void options_export_to_prologs(spank_t sp, const struct request *request);

#endif
