/* The plugin itself, from its first call to its last, in each context, with Slurm played by host.c; under the
 * sanitizers, which also see what is leaked. Prints what is wrong; exit 1 then. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "host.h"

int slurm_spank_init(spank_t sp, int ac, char **av);
int slurm_spank_init_post_opt(spank_t sp, int ac, char **av);
int slurm_spank_local_user_init(spank_t sp, int ac, char **av);
int slurm_spank_task_init(spank_t sp, int ac, char **av);
int slurm_spank_task_exit(spank_t sp, int ac, char **av);
int slurm_spank_exit(spank_t sp, int ac, char **av);

static char folder[] = "/tmp/srobust-check-XXXXXX", exits_argument[64], dumps_argument[64], python_argument[64];
static char *arguments[] = {exits_argument, dumps_argument, python_argument};

static void is(const char *name, const char *expected)
{
	const char *value = host_env(name);

	CHECK((value == NULL && expected == NULL) || (value != NULL && expected != NULL && strcmp(value, expected) == 0),
	      "%s is %s", name, value != NULL ? value : "not set");
}

static void start(enum spank_context context, uint32_t step)
{
	host_begin(context);
	host.step = step;
	CHECK(slurm_spank_init(NULL, 3, arguments) == 0, "init");
}

static void run_task(void)
{
	CHECK(slurm_spank_init_post_opt(NULL, 3, arguments) == 0, "post_opt");
	CHECK(slurm_spank_task_init(NULL, 3, arguments) == 0, "task_init");
}

static void finish(void)
{
	CHECK(slurm_spank_exit(NULL, 3, arguments) == 0, "exit");
}

/* The variable is `before`, sixteen digits that nobody can guess, and `after`. */
static void is_random(const char *name, const char *before, const char *after)
{
	const char *value = host_env(name), *digits = value + strlen(before);

	CHECK(strncmp(value, before, strlen(before)) == 0 && strspn(digits, "0123456789abcdef") == 16 &&
		      strcmp(digits + 16, after) == 0 && strncmp(digits, "0000000000000000", 16) != 0,
	      "%s=%s", name, value);
}

static void test_a_watched_task(void)
{
	char name[128], text[64] = "";
	int fd;

	start(S_CTX_REMOTE, 3);
	CHECK(host_option("robust", "observe", 1) == 0, "option");
	host_set("PYTHONPATH", "/own");
	run_task();
	CHECK(host.traced == 1, "traced %d times", host.traced);
	is("TORCH_FR_BUFFER_SIZE", "2000");
	is("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000");
	is("TORCH_NCCL_DUMP_ON_TIMEOUT", "1");
	is_random("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "/tmp/srobust-12.3-", "-");
	is_random("TORCH_FR_DUMP_TEMP_FILE", "/dumps/srobust-12.3-", "-fr-rank-");
	is("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", host_env("TORCH_FR_DUMP_TEMP_FILE"));
	is("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "1");
	is_random("CUDA_COREDUMP_FILE", "/dumps/srobust-12.3-", "-%h-%p.nvcudmp");
	is("CUDA_ENABLE_LIGHTWEIGHT_COREDUMP", "1");
	CHECK(strstr(host_env("CUDA_COREDUMP_GENERATION_FLAGS"), "skip_global_memory") != NULL, "flags");
	CHECK(strstr(host_env("PYTHONPATH"), ":/own") != NULL, "PYTHONPATH=%s", host_env("PYTHONPATH"));
	snprintf(name, sizeof name, "%s", host_env("SROBUST_EXITS"));
	fd = open(name, O_RDONLY);
	CHECK(fd >= 0, "%s is not there", name);
	host.task = 5;
	host.status = SIGKILL;
	CHECK(slurm_spank_task_exit(NULL, 3, arguments) == 0, "task_exit");
	finish();
	CHECK(access(name, F_OK) != 0, "%s is still there", name);
	CHECK(read(fd, text, sizeof text - 1) > 0 && strncmp(text, "5 0 9 ", 6) == 0, "it says '%s'", text);
	close(fd);
	finish();
}

static void test_what_the_user_set_stays(void)
{
	static const char *const own[] = {
		"TORCH_NCCL_TRACE_BUFFER_SIZE",	   "TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_PIPE_FILE",
		"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "CUDA_COREDUMP_FILE",       "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP",
	};
	static const char *const others[] = {
		"TORCH_FR_BUFFER_SIZE",	   "TORCH_NCCL_DUMP_ON_TIMEOUT",     "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
		"TORCH_FR_DUMP_TEMP_FILE", "CUDA_COREDUMP_GENERATION_FLAGS",
	};

	start(S_CTX_REMOTE, 3);
	host_option("robust", NULL, 1);
	for (size_t n = 0; n < sizeof own / sizeof *own; n++)
		host_set(own[n], "mine");
	host_set("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "0");
	run_task();
	for (size_t n = 0; n < sizeof own / sizeof *own; n++)
		is(own[n], "mine");
	for (size_t n = 0; n < sizeof others / sizeof *others; n++)
		is(others[n], NULL);
	is("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "0");
	finish();
}

static void untouched(const char *why)
{
	CHECK(host.traced == 0, "%s: traced", why);
	for (int n = 0; n < 3; n++) {
		static const char *const names[] = {"TORCH_FR_BUFFER_SIZE", "SROBUST_EXITS", "PYTHONPATH"};

		CHECK(host_env(names[n]) == NULL, "%s: %s is set", why, names[n]);
	}
}

static void test_who_is_left_alone(void)
{
	start(S_CTX_REMOTE, 3);
	run_task();
	untouched("no option");
	start(S_CTX_REMOTE, 3);
	host_option("robust", "off", 1);
	run_task();
	untouched("off");
	start(S_CTX_REMOTE, 3);
	host_option("robust", NULL, 1);
	host_set("SROBUST_WATCH", "1");
	run_task();
	untouched("the watch step");
	for (uint32_t number = 0xfffffffaU; number <= 0xfffffffcU; number++) {
		start(S_CTX_REMOTE, number);
		host_option("robust", NULL, 1);
		run_task();
		untouched("a step of Slurm's own");
		finish();
	}
}

static void test_a_batch_script(void)
{
	start(S_CTX_REMOTE, 0xfffffffbU);
	host_option("robust", "observe", 1);
	host_option("robust-spares", "2", 1);
	host_set("SLURM_SPANK__SLURM_SPANK_OPTION_robust_robust", "observe");
	run_task();
	is("SROBUST_MODE", "observe");
	is("SROBUST_SPARES", "2");
	is("SLURM_SPANK__SLURM_SPANK_OPTION_robust_robust", NULL);
	finish();
}

/* An option without --robust has no effect, which is logged once, where it is typed; `srobust run` finds its value. */
static void test_options_alone(void)
{
	for (int context = 0; context < 2; context++) {
		start(context == 0 ? S_CTX_ALLOCATOR : S_CTX_LOCAL, 0);
		CHECK(host_option("robust-layout", "tp=2", 0) == 0 && host_option("robust-spares", "1", 0) == 0, "options");
		CHECK(slurm_spank_init_post_opt(NULL, 3, arguments) == 0, "post_opt");
		CHECK(strstr(host.said, "has no effect without --robust") != NULL, "said: %s", host.said);
		CHECK(strchr(host.said, '\n')[1] == '\0', "said twice: %s", host.said);
		CHECK(getenv("SROBUST_LAYOUT") != NULL && getenv("SROBUST_MODE") == NULL, "exported");
		unsetenv("SROBUST_LAYOUT");
		unsetenv("SROBUST_SPARES");
		finish();
	}
	start(S_CTX_REMOTE, 0xfffffffbU);
	host_option("robust-layout", "tp=2", 1);
	run_task();
	is("SROBUST_LAYOUT", "tp=2");
	is("SROBUST_MODE", NULL);
	CHECK(host.said[0] == '\0', "said again: %s", host.said);
	finish();
	start(S_CTX_LOCAL, 0);
	host_option("robust-layout", "tp=2", 0);
	host_option("robust", "off", 0);
	slurm_spank_init_post_opt(NULL, 3, arguments);
	CHECK(host.said[0] == '\0', "off was chosen: %s", host.said);
	unsetenv("SROBUST_LAYOUT");
	unsetenv("SROBUST_MODE");
	finish();
}

/* srobust run has these variables too, and takes more of them: who did not ask for the plugin is not told. */
static void test_wrong_variables_of_a_job_that_is_not_watched(void)
{
	start(S_CTX_REMOTE, 3);
	host_set("SROBUST_CHECKPOINT_DIR", "/ck/run[1]");
	host_set("SROBUST_LAYOUT", "fsdp=8");
	run_task();
	CHECK(host.said[0] == '\0', "said: %s", host.said);
	finish();
	start(S_CTX_REMOTE, 3);
	host_set("SROBUST_MODE", "of");
	run_task();
	CHECK(strstr(host.said, "SROBUST_MODE=of: expected") != NULL, "said: %s", host.said);
	finish();
}

/* The site's mode holds for plain sruns. It is no choice of the job's: `srobust run` has robust.yaml for that. */
static void test_the_sites_mode(void)
{
	char *site[] = {"mode=observe"};

	for (int context = 0; context < 2; context++) {
		host_begin(context == 0 ? S_CTX_ALLOCATOR : S_CTX_LOCAL);
		slurm_spank_init(NULL, 1, site);
		slurm_spank_init_post_opt(NULL, 1, site);
		CHECK(getenv("SROBUST_MODE") == NULL, "exported");
		CHECK(host_prolog("ROBUST_MODE") != NULL && strcmp(host_prolog("ROBUST_MODE"), "observe") == 0, "prolog");
		finish();
	}
	host_begin(S_CTX_REMOTE);
	host.step = 0xfffffffbU;
	slurm_spank_init(NULL, 1, site);
	run_task();
	is("SROBUST_MODE", NULL);
	finish();
	host_begin(S_CTX_REMOTE);
	host.step = 3;
	slurm_spank_init(NULL, 1, site);
	run_task();
	is("TORCH_FR_BUFFER_SIZE", "2000");
	finish();
}

/* As root would read them: what a patched command has let through is told, and has no effect. */
static void test_hostile_values_in_slurmstepd(void)
{
	static const char *const names[] = {"robust", "robust-spares", "robust-layout", "robust-checkpoint-dir",
					    "robust-hang-timeout"};
	char *longest = malloc(10241);

	memset(longest, 'x', 10240);
	longest[10240] = '\0';
	const char *values[] = {"\n", "a\"b'c", "../../etc", "$(reboot)", longest};
	for (size_t name = 0; name < 5; name++) {
		for (size_t value = 0; value < 5; value++) {
			start(S_CTX_REMOTE, 3);
			CHECK(host_option(names[name], values[value], 1) == 0, "the launch is held");
			CHECK(strstr(host.said, "expected") != NULL, "nothing is said of --%s", names[name]);
			CHECK(strlen(host.said) < 300 && strchr(host.said, '\n')[1] == '\0',
			      "it is said as it came: %.400s", host.said);
			run_task();
			untouched("hostile");
			start(S_CTX_ALLOCATOR, 0);
			CHECK(host_option(names[name], values[value], 0) != 0, "--%s is taken", names[name]);
		}
	}
	start(S_CTX_REMOTE, 3);
	host_option("robust", NULL, 1);
	host_set("SROBUST_CHECKPOINT_DIR", longest);
	host_set("SROBUST_LAYOUT", "$(reboot)");
	run_task();
	CHECK(strstr(host.said, "SROBUST_CHECKPOINT_DIR") != NULL && strstr(host.said, "SROBUST_LAYOUT") != NULL, "said: %s",
	      host.said);
	is("TORCH_FR_BUFFER_SIZE", "2000");
	finish();
	free(longest);
}

/* A folder in which somebody else could put a link under our name is not used. */
static void test_exits_only_where_nobody_else_may_write(void)
{
	char path[96];

	snprintf(path, sizeof path, "%s/exits", folder);
	CHECK(chmod(path, 0777) == 0, "%s was not made", path);
	start(S_CTX_REMOTE, 3);
	host_option("robust", NULL, 1);
	run_task();
	is("SROBUST_EXITS", NULL);
	finish();
	chmod(path, 0755);
}

static void test_commands(void)
{
	start(S_CTX_ALLOCATOR, 0);
	CHECK(host_option("robust", NULL, 0) == 0 && host_option("robust-spares", "1", 0) == 0, "options");
	CHECK(slurm_spank_init_post_opt(NULL, 3, arguments) == 0, "post_opt");
	CHECK(host_prolog("ROBUST_MODE") != NULL && strcmp(host_prolog("ROBUST_MODE"), "on") == 0, "mode");
	CHECK(host_prolog("ROBUST_SPARES") != NULL && strcmp(host_prolog("ROBUST_SPARES"), "1") == 0, "spares");
	CHECK(getenv("SROBUST_MODE") != NULL, "not exported");
	finish();

	start(S_CTX_LOCAL, 0);
	CHECK(slurm_spank_init_post_opt(NULL, 3, arguments) == 0, "post_opt");
	/* There is no such srobust: said once, and srun goes on; a heterogeneous step comes by twice. */
	CHECK(slurm_spank_local_user_init(NULL, 3, arguments) == 0, "launch");
	CHECK(slurm_spank_local_user_init(NULL, 3, arguments) == 0, "launch again");
	CHECK(strstr(host.said, "there is no srobust at") != NULL, "said: %s", host.said);
	CHECK(strstr(strstr(host.said, "there is no srobust at") + 1, "there is no srobust at") == NULL, "said twice");
	finish();
	unsetenv("SROBUST_MODE");
	unsetenv("SROBUST_SPARES");
}

/* Its watch would see one component's ranks wait for ranks that it cannot see. */
static void test_a_heterogeneous_job_is_not_supervised(void)
{
	start(S_CTX_LOCAL, 0);
	host_option("robust", NULL, 0);
	slurm_spank_init_post_opt(NULL, 3, arguments);
	setenv("SLURM_HET_SIZE", "2", 1);
	slurm_spank_local_user_init(NULL, 3, arguments);
	slurm_spank_local_user_init(NULL, 3, arguments);
	CHECK(strstr(host.said, "step 12.0 is not supervised: it is part of a heterogeneous job") != NULL, "said: %s",
	      host.said);
	CHECK(strchr(host.said, '\n')[1] == '\0', "said twice: %s", host.said);
	unsetenv("SLURM_HET_SIZE");
	unsetenv("SROBUST_MODE");
	finish();
}

/* srun's environment is that of its step's rank 0 on the batch host: SROBUST_WATCH keeps agents from taking it for one. */
static void test_the_watch_is_started_and_not_waited_for(void)
{
	char path[96], argument[128], done[96];
	FILE *script;

	snprintf(path, sizeof path, "%s/srobust", folder);
	snprintf(done, sizeof done, "%s/started", folder);
	script = fopen(path, "w");
	fprintf(script, "#!/bin/sh\necho \"$@ $SROBUST_WATCH\" >%s.new\nmv %s.new %s\n", done, done, done);
	fclose(script);
	chmod(path, 0755);
	snprintf(argument, sizeof argument, "command=%s", path);
	char *all[] = {argument};
	host_begin(S_CTX_LOCAL);
	host.step = 4;
	slurm_spank_init(NULL, 1, all);
	host_option("robust", "on", 0);
	host_option("robust-layout", "tp=2", 0);
	slurm_spank_init_post_opt(NULL, 1, all);
	slurm_spank_local_user_init(NULL, 1, all);
	for (int n = 0; n < 200 && access(done, F_OK) != 0; n++)
		usleep(50000);
	char text[256] = "", expected[256];
	int fd = open(done, O_RDONLY);

	CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0, "it was not started");
	if (fd >= 0)
		close(fd);
	snprintf(expected, sizeof expected, "attach --step=4 --launcher=%d --act --layout=tp=2 -- 12 1\n", (int)getpid());
	CHECK(strcmp(text, expected) == 0, "started as: %s", text);
	unlink(done);
	unlink(path);
	unsetenv("SROBUST_MODE");
	unsetenv("SROBUST_LAYOUT");
	slurm_spank_exit(NULL, 1, all);
}

static void test_wrong_plugstack_arguments(void)
{
	char *wrong[] = {"colour=red", "mode", "exits=run", "dumps=\n", "python=/a:b", "command=x"};

	host_begin(S_CTX_SLURMD);
	CHECK(slurm_spank_init(NULL, 6, wrong) == 0, "init");
	CHECK(strstr(host.said, "colour=red: there is no such argument") != NULL, "said: %s", host.said);
	finish();
}

int main(void)
{
	char path[96];

	for (char **row = (char *[]){"SROBUST_WATCH", "SROBUST_ATTEMPT", "SROBUST_MODE", "SLURM_STEP_ID", NULL}; *row; row++)
		unsetenv(*row);
	if (mkdtemp(folder) == NULL)
		return 2;
	snprintf(exits_argument, sizeof exits_argument, "exits=%s/exits", folder);
	snprintf(dumps_argument, sizeof dumps_argument, "dumps=/dumps");
	snprintf(python_argument, sizeof python_argument, "python=%s", PYTHON_FOLDER);
	test_a_watched_task();
	test_what_the_user_set_stays();
	test_who_is_left_alone();
	test_a_batch_script();
	test_options_alone();
	test_the_sites_mode();
	test_wrong_variables_of_a_job_that_is_not_watched();
	test_hostile_values_in_slurmstepd();
	test_exits_only_where_nobody_else_may_write();
	test_commands();
	test_a_heterogeneous_job_is_not_supervised();
	test_the_watch_is_started_and_not_waited_for();
	test_wrong_plugstack_arguments();
	host_end();
	snprintf(path, sizeof path, "%s/exits", folder);
	CHECK(rmdir(path) == 0, "%s is not empty", path);
	rmdir(folder);
	if (failures == 0)
		puts("contexts: all checks hold");
	return failures != 0;
}
