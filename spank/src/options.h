/* The options that sbatch, salloc and srun get, and what the job asked for: typed, in the environment, the site's. */
#ifndef SROBUST_OPTIONS_H
#define SROBUST_OPTIONS_H

#include <slurm/spank.h>

#include "site.h"
#include "values.h"

/* The environment's name of each field. An option that is typed comes before it, the site's choice after it. */
extern const char *const FIELD_VARIABLES[FIELDS];

/* Slurm's own names for the same, in which it hands sbatch's options to the script. */
extern const char *const SLURM_VARIABLES[FIELDS];

/* Read the plugstack arguments and register the options; from slurm_spank_init, in every context: before Slurm looks
 * for options in the environment and on the command line. */
void options_register(spank_t sp, int ac, char **av);

/* What the site chose. */
const struct site *options_site(void);

/* Log each plugstack argument that is not allowed. Such a one has no effect; the rest has. */
void options_tell_site_mistakes(void);

/* Whether any of our options was typed. */
bool options_any_typed(void);

/* Tell of an option that was typed and, without --robust, has the plugin watch nothing. */
void options_tell_idle(const struct request *request);

/* Finds a variable: `spank_getenv` in a task, `getenv` where a command runs. False where it is not set. */
typedef bool (*lookup_fn)(spank_t sp, const char *name, char *out, int size);

bool lookup_here(spank_t sp, const char *name, char *out, int size);
bool lookup_in_job(spank_t sp, const char *name, char *out, int size);

/* All of it together: typed, else from the environment, else the site's. What stands in the environment and is not
 * allowed is logged and passed over: the job runs all the same. */
struct request options_effective(spank_t sp, lookup_fn lookup);

/* Whether the job is watched. */
bool is_watched(const struct request *request);

/* Whether this field is the job's own choice, which its shell and steps are to find; the site's mode is none, since
 * `srobust run` has the site's robust.yaml for that. */
bool is_jobs_choice(const struct request *request, enum field field);

/* The job's choice, where its shell and its steps find it. */
void options_export_here(const struct request *request);

/* The job's choice for prolog and epilog: SPANK_ROBUST_MODE and, where given, SPANK_ROBUST_SPARES. */
void options_tell_prologs(spank_t sp, const struct request *request);

#endif
