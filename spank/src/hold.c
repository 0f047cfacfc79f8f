/* A batch script goes on as soon as its srun ends, and with its last line the job is over: nobody can requeue it any
 * more. So where a step has failed, srun says so to its watch and stays until the watch ends, or for as long as the
 * watch asks it to. Each wait is bounded: a watch that is gone, or silent for PATIENCE_MS, holds nothing up, and a
 * signal ends the wait at once.
 *
 * Slurm calls no function of a plugin with srun's exit code. The C library does: on_exit. */
#include "hold.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* From one word of the watch to the next. To decide takes it seconds. */
#ifndef PATIENCE_MS
#define PATIENCE_MS 60000
#endif

static struct {
	int fd;
	pid_t srun;
	volatile sig_atomic_t interrupted;
} hold = {.fd = -1};

/* The wait in `stay` sees it as the watch's end, whichever of srun's threads the signal came to. */
static void on_signal(int number)
{
	int before = errno;

	(void)number;
	hold.interrupted = 1;
	shutdown(hold.fd, SHUT_RDWR);
	errno = before;
}

/* Somebody wants srun to end: a person, a time limit, a requeue. It ends with its own exit code all the same. */
static void let_signals_end_it(void)
{
	static const int ending[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
	struct sigaction action;
	sigset_t open;

	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	sigemptyset(&action.sa_mask);
	sigemptyset(&open);
	for (size_t n = 0; n < sizeof ending / sizeof *ending; n++) {
		sigaction(ending[n], &action, NULL);
		sigaddset(&open, ending[n]);
	}
	pthread_sigmask(SIG_UNBLOCK, &open, NULL);
}

static void stay(void)
{
	char words[64];

	for (;;) {
		struct pollfd wanted = {.fd = hold.fd, .events = POLLIN};
		int ready = poll(&wanted, 1, PATIENCE_MS);
		ssize_t got;

		if (hold.interrupted || ready == 0)
			return;
		if (ready < 0) {
			if (errno == EINTR)
				continue;
			return;
		}
		got = recv(hold.fd, words, sizeof words, MSG_DONTWAIT);
		if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
			return;
	}
}

static void at_end(int status, void *unused)
{
	char words[32];

	(void)unused;
	/* A process that srun has forked, and that ends without another program, comes by here too. */
	if (hold.fd < 0 || getpid() != hold.srun || (status & 0xff) == 0)
		return;
	let_signals_end_it();
	snprintf(words, sizeof words, "ended %d\n", status & 0xff);
	if (send(hold.fd, words, strlen(words), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return;
	stay();
}

/* Slurm unloads its plugins before srun's last line: the code that is called after that must stay where it is. */
static int remain_loaded(void)
{
	Dl_info about;

	return dladdr((void *)&hold, &about) != 0 && about.dli_fname != NULL &&
	       dlopen(about.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) != NULL;
}

int hold_prepare(void)
{
	int ends[2];

	if (!remain_loaded() || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
		slurm_debug("robust: srun: its end is not held for a requeue: %s", strerror(errno));
		return -1;
	}
	if (on_exit(at_end, NULL) != 0) {
		close(ends[0]);
		close(ends[1]);
		return -1;
	}
	hold.fd = ends[0];
	hold.srun = getpid();
	hold.interrupted = 0;
	return ends[1];
}

int hold_is_over(int fd)
{
	char word;

	return recv(fd, &word, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}
