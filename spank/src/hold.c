/* A batch script continues as soon as its srun ends, and after its last line the job has ended and cannot be requeued.
 * So where a step has failed, srun reports that to its watch and waits until the watch ends, or as long as the watch
 * asks it to. The wait is bounded: it ends where the watch has ended or is silent for PATIENCE_MS, and at any signal.
 *
 * Slurm passes srun's exit code to no function of a plugin. The C library does: on_exit. */
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

/* From one message of the watch to the next. It decides within seconds. */
#ifndef PATIENCE_MS
#define PATIENCE_MS 60000
#endif

static struct {
	int fd;
	pid_t srun;
	volatile sig_atomic_t interrupted;
} hold = {.fd = -1};

/* Ends the poll in `wait_for_watch`, in whichever of srun's threads the signal arrives. */
static void on_signal(int number)
{
	int before = errno;

	(void)number;
	hold.interrupted = 1;
	shutdown(hold.fd, SHUT_RDWR);
	errno = before;
}

/* A person, a time limit or a requeue may end srun meanwhile. It keeps its own exit code. */
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

static void wait_for_watch(void)
{
	char buffer[64];

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
		got = recv(hold.fd, buffer, sizeof buffer, MSG_DONTWAIT);
		if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
			return;
	}
}

static void at_end(int status, void *unused)
{
	char message[32];

	(void)unused;
	/* A child that srun has forked and that ends without exec gets here, too. */
	if (hold.fd < 0 || getpid() != hold.srun || (status & 0xff) == 0)
		return;
	let_signals_end_it();
	snprintf(message, sizeof message, "ended %d\n", status & 0xff);
	if (send(hold.fd, message, strlen(message), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return;
	wait_for_watch();
}

/* Slurm unloads its plugins before srun exits: the code that on_exit calls must stay loaded. */
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
		slurm_debug("robust: srun: it will not wait for a requeue: %s", strerror(errno));
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
