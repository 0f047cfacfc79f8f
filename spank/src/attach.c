#include "attach.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <slurm/spank.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hold.h"

/* A step that ends sooner (`srun hostname`) costs no start of Python. No hang is suspected that early. */
enum { GRACE_MS = 1000, POLL_MS = 50, MAX_WORDS = 20, WORD_BYTES = FOLDER_BYTES + 32 };

struct command_line {
	char words[MAX_WORDS][WORD_BYTES];
	char *argv[MAX_WORDS + 1];
	int count;
};

static void __attribute__((format(printf, 2, 3))) add(struct command_line *line, const char *format, ...)
{
	va_list values;

	if (line->count >= MAX_WORDS)
		return;
	va_start(values, format);
	vsnprintf(line->words[line->count], WORD_BYTES, format, values);
	va_end(values);
	line->argv[line->count] = line->words[line->count];
	line->argv[++line->count] = NULL;
}

static void compose(struct command_line *line, const char *command, uint32_t job, uint32_t step,
		    const struct request *request)
{
	memset(line, 0, sizeof *line);
	add(line, "%s", command);
	add(line, "attach");
	add(line, "--step=%u", step);
	add(line, "--launcher=%d", (int)getpid());
	if (request->mode == MODE_ON)
		add(line, "--act");
	if (value_given(request, FIELD_CHECKPOINT_DIR))
		add(line, "--checkpoint-dir=%s", request->checkpoint_dir);
	if (value_given(request, FIELD_HANG_TIMEOUT))
		add(line, "--hang-timeout=%s", request->hang_timeout);
	if (value_given(request, FIELD_LAYOUT))
		add(line, "--layout=%s", request->layout);
	add(line, "--");
	add(line, "%u", job);
}

/* srun's own environment with the mark of a watch, so that agents do not take the watch for a rank.
 * The caller frees it; NULL where there is no memory. */
static char **watch_environment(bool holds)
{
	static char mark[] = "SROBUST_WATCH=1", held[] = HOLD_VARIABLE;
	size_t count = 0;
	char **all;

	while (environ[count] != NULL)
		count++;
	all = malloc((count + 3) * sizeof *all);
	if (all == NULL)
		return NULL;
	memcpy(all, environ, count * sizeof *all);
	all[count] = mark;
	all[count + 1] = holds ? held : NULL;
	all[count + 2] = NULL;
	return all;
}

/* From here on system calls only: between fork and exec srun's other threads may hold any lock. */

static void reset_signals(void)
{
	sigset_t none;

	for (int number = 1; number < 65; number++)
		signal(number, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Close srun's files: a reader of its output would wait for us. A regular file as stderr (a job's output) stays open,
 * and our connection to srun (`held`, -1 for none) gets its own number. */
static void detach_files(int limit, int held)
{
	struct stat about;
	int null = open("/dev/null", O_RDWR), first = held >= 0 ? HOLD_FD + 1 : HOLD_FD;

	if (null < 0)
		_exit(127);
	dup2(null, 0);
	dup2(null, 1);
	if (fstat(2, &about) != 0 || !S_ISREG(about.st_mode))
		dup2(null, 2);
	/* It has the number already: dup2 would not clear the flag that closes it at exec. */
	if (held == HOLD_FD)
		fcntl(held, F_SETFD, 0);
	else if (held >= 0 && dup2(held, HOLD_FD) < 0)
		_exit(127);
#ifdef SYS_close_range
	if (syscall(SYS_close_range, (unsigned)first, ~0U, 0U) == 0)
		return;
#endif
	for (int fd = first; fd < limit; fd++)
		close(fd);
}

/* False if srun has ended meanwhile or waits for us: a step that fails at once is left to the script. */
static bool outlives_grace(pid_t srun, bool holds)
{
	const struct timespec pause = {0, POLL_MS * 1000000L};

	for (int waited = 0; waited < GRACE_MS; waited += POLL_MS) {
		nanosleep(&pause, NULL);
		if (kill(srun, 0) != 0 && errno == ESRCH)
			return false;
		if (holds && hold_is_over(HOLD_FD))
			return false;
	}
	return true;
}

static void __attribute__((noreturn)) exec_attach(char **argv, char **environment, pid_t srun, int limit, int held)
{
	reset_signals();
	detach_files(limit, held);
	if (outlives_grace(srun, held >= 0)) {
		execve(argv[0], argv, environment);
		static const char message[] = "slurm_robust: srobust could not be started; the step is not supervised\n";
		if (write(2, message, sizeof message - 1) < 0)
			_exit(126);
	}
	_exit(127);
}

static void close_held(int held)
{
	if (held >= 0)
		close(held);
}

void attach_start(const char *command, uint32_t job, uint32_t step, const struct request *request)
{
	static struct command_line line;
	struct rlimit files = {0};
	/* A watch that only observes decides nothing for which the script would have to wait. */
	int held = request->mode == MODE_ON ? hold_prepare() : -1;
	char **environment = watch_environment(held >= 0);
	pid_t srun = getpid(), child;
	int status, limit = 4096;

	if (environment == NULL) {
		close_held(held);
		slurm_error("robust: srun: step %u.%u is not supervised: no memory", job, step);
		return;
	}
	compose(&line, command, job, step, request);
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 65536)
		limit = (int)files.rlim_cur;
	child = fork();
	if (child == 0) {
		/* Forked twice: init, or the subreaper here, becomes its parent, and srun has no child to wait for. */
		setsid();
		switch (fork()) {
		case -1:
			_exit(1);
		case 0:
			exec_attach(line.argv, environment, srun, limit, held);
		default:
			_exit(0);
		}
	}
	free(environment);
	close_held(held);
	if (child < 0) {
		slurm_error("robust: srun: step %u.%u is not supervised: fork: %s", job, step, strerror(errno));
		return;
	}
	while (waitpid(child, &status, 0) < 0) {
		if (errno != EINTR)
			return; /* another thread has taken its status; it has ended all the same */
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		slurm_error("robust: srun: step %u.%u is not supervised: it could not fork", job, step);
	else
		slurm_verbose("robust: srun: step %u.%u is supervised by %s", job, step, command);
}
