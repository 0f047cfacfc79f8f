/* srun's end, with Slurm played by host.c and the watch by shell scripts: who is waited for, and for how long. Prints
 * what is wrong; exit 1 then. */
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "host.h"

int slurm_spank_init(spank_t sp, int ac, char **av);
int slurm_spank_init_post_opt(spank_t sp, int ac, char **av);
int slurm_spank_local_user_init(spank_t sp, int ac, char **av);
int slurm_spank_exit(spank_t sp, int ac, char **av);

static char folder[] = "/tmp/srobust-hold-XXXXXX";

static long long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* An srun with a watch that is this shell script, which has its connection as 3. It ends with `code`, once the watch is
 * there (or at once), and gets `number` a moment later, where that is a signal. How it ended; how long it took for that. */
static int ends(const char *watch, const char *mode, int code, int number, long long *took_ms)
{
	char path[96], argument[128], there[96];
	FILE *script;
	pid_t srun;
	int status = -1;

	snprintf(path, sizeof path, "%s/srobust", folder);
	snprintf(there, sizeof there, "%s/there", folder);
	snprintf(argument, sizeof argument, "command=%s", path);
	script = fopen(path, "w");
	fprintf(script, "#!/bin/bash\n[ -n \"$SROBUST_HOLD\" ] && echo $$ >%s.new && mv %s.new %s\n%s\n", there, there,
		there, watch);
	fclose(script);
	chmod(path, 0755);
	srun = fork();
	if (srun == 0) {
		char *all[] = {argument};

		host_begin(S_CTX_LOCAL);
		slurm_spank_init(NULL, 1, all);
		host_option("robust", mode, 0);
		slurm_spank_init_post_opt(NULL, 1, all);
		slurm_spank_local_user_init(NULL, 1, all);
		for (int n = 0; n < 1200 && watch[0] != '\0' && access(there, F_OK) != 0; n++)
			usleep(50000);
		slurm_spank_exit(NULL, 1, all);
		host_end();
		exit(code);
	}
	for (int n = 0; n < 1200 && watch[0] != '\0' && access(there, F_OK) != 0; n++)
		usleep(50000);
	*took_ms = now_ms();
	if (number != 0) {
		usleep(300000);
		kill(srun, number);
	}
	waitpid(srun, &status, 0);
	*took_ms = now_ms() - *took_ms;
	unlink(there);
	unlink(path);
	return status;
}

/* What srun says is read, and its own exit code is what the script gets. Times tell who was waited for: PATIENCE_MS is
 * 1500 here. */
static void test_the_end_of_srun_waits_for_the_watch(void)
{
	static const struct {
		const char *what, *watch, *mode;
		int code, number, at_least_ms;
	} cases[] = {
		{"decides", "read -r -u 3 word code; [ \"$word $code\" = 'ended 7' ] && sleep 1", "on", 7, 0, 900},
		{"says nothing", "exec sleep 40", "on", 7, 0, 1400},
		{"asks for more time", "for n in 1 2 3; do sleep 1; printf . >&3; done", "on", 7, 0, 2900},
		{"is there, and srun gets a signal", "while sleep 1; do printf . >&3; done", "on", 7, SIGTERM, 0},
		{"is there, and the step succeeded", "exec sleep 40", "on", 0, 0, 0},
		{"is not there yet", "", "on", 7, 0, 0},
		{"may not act", "", "observe", 7, 0, 0},
	};

	for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
		long long took_ms = 0;
		int status = ends(cases[n].watch, cases[n].mode, cases[n].code, cases[n].number, &took_ms);

		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == cases[n].code, "its watch %s: status %x", cases[n].what,
		      status);
		CHECK(took_ms >= cases[n].at_least_ms && took_ms < 30000, "its watch %s: %lld ms", cases[n].what, took_ms);
	}
}

int main(void)
{
	for (char **row = (char *[]){"SROBUST_WATCH", "SROBUST_ATTEMPT", "SROBUST_MODE", "SLURM_STEP_ID", NULL}; *row; row++)
		unsetenv(*row);
	if (mkdtemp(folder) == NULL)
		return 2;
	test_the_end_of_srun_waits_for_the_watch();
	rmdir(folder);
	if (failures == 0)
		puts("hold: all checks hold");
	return failures != 0;
}
