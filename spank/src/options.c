#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONAL_ARGUMENT = 2, MAX_MISTAKES = 4 };

const char *const FIELD_VARIABLES[FIELDS] = {
	[FIELD_MODE] = "SROBUST_MODE",
	[FIELD_SPARES] = "SROBUST_SPARES",
	[FIELD_LAYOUT] = "SROBUST_LAYOUT",
	[FIELD_CHECKPOINT_DIR] = "SROBUST_CHECKPOINT_DIR",
	[FIELD_HANG_TIMEOUT] = "SROBUST_HANG_TIMEOUT",
};

#define BY_SLURM(option) "SLURM_SPANK__SLURM_SPANK_OPTION_robust_" option

const char *const SLURM_VARIABLES[FIELDS] = {
	[FIELD_MODE] = BY_SLURM("robust"),
	[FIELD_SPARES] = BY_SLURM("robust_spares"),
	[FIELD_LAYOUT] = BY_SLURM("robust_layout"),
	[FIELD_CHECKPOINT_DIR] = BY_SLURM("robust_checkpoint_dir"),
	[FIELD_HANG_TIMEOUT] = BY_SLURM("robust_hang_timeout"),
};

static struct {
	struct site site;
	struct request typed;
	const char *mistakes[MAX_MISTAKES]; /* plugstack arguments: Slurm keeps them while the plugin is loaded */
	int mistake_count;
} plugin;

static int option_given(int val, const char *optarg, int remote);

static struct spank_option table[FIELDS] = {
	[FIELD_MODE] = {"robust", "on|observe|off",
			"[slurm_robust] watch the training step; on: a hung or dead one is requeued without the guilty "
			"node; observe: watch and report only",
			OPTIONAL_ARGUMENT, FIELD_MODE, option_given},
	[FIELD_SPARES] = {"robust-spares", "N", "[slurm_robust] spare nodes in the allocation, passed to prolog and script",
			  1, FIELD_SPARES, option_given},
	[FIELD_LAYOUT] = {"robust-layout", "tp=2,pp=4", "[slurm_robust] parallel sizes, for the localisation", 1,
			  FIELD_LAYOUT, option_given},
	[FIELD_CHECKPOINT_DIR] = {"robust-checkpoint-dir", "DIR", "[slurm_robust] where the job's checkpoints are", 1,
				  FIELD_CHECKPOINT_DIR, option_given},
	[FIELD_HANG_TIMEOUT] = {"robust-hang-timeout", "SECONDS",
				"[slurm_robust] silence after which the job is requeued, whatever its stacks show", 1,
				FIELD_HANG_TIMEOUT, option_given},
};

/* Slurm may call this twice for one option, and in slurmstepd with values that a patched command did not check. */
static int option_given(int val, const char *optarg, int remote)
{
	char text[SHOWN_BYTES];
	const char *why;

	if (val < 0 || val >= FIELDS)
		return 0;
	why = value_take(&plugin.typed, (enum field)val, optarg);
	if (why == NULL)
		return 0;
	slurm_error("robust: option: --%s=%s: %s", table[val].name, shown(optarg, text), why);
	return remote ? 0 : -1;
}

/* The shell of salloc has its options twice: in Slurm's variables, which count as typed here, and in ours, which the
 * user may have changed since. */
static void drop_slurm_variables(void)
{
	for (int field = 0; field < FIELDS; field++) {
		if (getenv(FIELD_VARIABLES[field]) != NULL)
			unsetenv(SLURM_VARIABLES[field]);
	}
}

void options_register(spank_t sp, int ac, char **av)
{
	if (spank_context() == S_CTX_LOCAL)
		drop_slurm_variables();
	memset(&plugin, 0, sizeof plugin);
	site_defaults(&plugin.site);
	for (int n = 0; n < ac; n++) {
		if (site_take(&plugin.site, av[n]) != NULL && plugin.mistake_count < MAX_MISTAKES)
			plugin.mistakes[plugin.mistake_count++] = av[n];
	}
	for (int field = 0; field < FIELDS; field++) {
		if (spank_option_register(sp, &table[field]) != ESPANK_SUCCESS)
			slurm_error("robust: init: --%s could not be registered", table[field].name);
	}
}

const struct site *options_site(void)
{
	return &plugin.site;
}

void options_log_site_mistakes(void)
{
	for (int n = 0; n < plugin.mistake_count; n++) {
		struct site scratch = plugin.site;
		char text[SHOWN_BYTES];
		const char *why = site_take(&scratch, plugin.mistakes[n]);

		slurm_error("robust: plugstack.conf: %s: %s", shown(plugin.mistakes[n], text), why ? why : "not allowed");
	}
}

bool options_any_typed(void)
{
	for (enum field field = FIELD_MODE; field < FIELDS; field++) {
		if (value_given(&plugin.typed, field))
			return true;
	}
	return false;
}

void options_warn_idle(const struct request *request)
{
	if (is_watched(request) || plugin.typed.mode != MODE_UNSET)
		return;
	for (enum field field = FIELD_MODE; field < FIELDS; field++) {
		if (value_given(&plugin.typed, field)) {
			slurm_error("robust: option: --%s has no effect without --robust", table[field].name);
			return;
		}
	}
}

bool lookup_here(spank_t sp, const char *name, char *out, int size)
{
	const char *value = getenv(name);

	(void)sp;
	if (value == NULL)
		return false;
	/* One that is too long is cut to a length that no field accepts. */
	snprintf(out, (size_t)size, "%s", value);
	return true;
}

bool lookup_in_job(spank_t sp, const char *name, char *out, int size)
{
	spank_err_t found = spank_getenv(sp, name, out, size);

	return found == ESPANK_SUCCESS || found == ESPANK_NOSPACE;
}

/* Take a field that was not typed. Where the plugin is not used, only a wrong mode is reported: `srobust run` reads
 * these variables, too, and accepts more values. */
static void take_variable(spank_t sp, lookup_fn lookup, enum field field, struct request *out)
{
	char value[FOLDER_BYTES + 1] = "", text[SHOWN_BYTES];
	const char *why;

	if (value_given(out, field) || !lookup(sp, FIELD_VARIABLES[field], value, sizeof value) || value[0] == '\0')
		return;
	why = value_take(out, field, value);
	if (why != NULL && (field == FIELD_MODE || is_watched(out)))
		slurm_error("robust: environment: %s=%s: %s; it is ignored", FIELD_VARIABLES[field],
			    shown(value, text), why);
}

struct request options_effective(spank_t sp, lookup_fn lookup)
{
	struct request result = plugin.typed;

	take_variable(sp, lookup, FIELD_MODE, &result);
	if (result.mode == MODE_UNSET) {
		result.mode = plugin.site.mode;
		result.is_sites_mode = true;
	}
	for (enum field field = FIELD_MODE + 1; field < FIELDS; field++)
		take_variable(sp, lookup, field, &result);
	return result;
}

bool is_watched(const struct request *request)
{
	return request->mode == MODE_ON || request->mode == MODE_OBSERVE;
}

bool is_jobs_choice(const struct request *request, enum field field)
{
	return value_given(request, field) && !(field == FIELD_MODE && request->is_sites_mode);
}

void options_export_here(const struct request *request)
{
	for (enum field field = FIELD_MODE; field < FIELDS; field++) {
		if (is_jobs_choice(request, field) && setenv(FIELD_VARIABLES[field], value_text(request, field), 1) != 0)
			slurm_error("robust: environment: %s could not be set", FIELD_VARIABLES[field]);
	}
}

void options_export_to_prologs(spank_t sp, const struct request *request)
{
	static const struct {
		enum field field;
		const char *name;
	} exported[] = {{FIELD_MODE, "ROBUST_MODE"}, {FIELD_SPARES, "ROBUST_SPARES"}};

	for (size_t n = 0; n < sizeof exported / sizeof *exported; n++) {
		if (value_given(request, exported[n].field) &&
		    spank_job_control_setenv(sp, exported[n].name, value_text(request, exported[n].field), 1) != ESPANK_SUCCESS)
			slurm_debug("robust: prolog: %s could not be passed on", exported[n].name);
	}
}
