#include "exits.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "values.h"

static struct {
	int fd;
	int folder;
	char name[NAME_MAX + 1];
	char path[FOLDER_BYTES + NAME_MAX + 2];
} file = {.fd = -1, .folder = -1};

static void let_go(void)
{
	if (file.fd >= 0)
		close(file.fd);
	if (file.folder >= 0)
		close(file.folder);
	file.fd = file.folder = -1;
	file.path[0] = '\0';
}

/* The folder and the one it lies in, where they are not there yet. */
static void make_folder(const char *folder)
{
	char above[FOLDER_BYTES];
	char *cut;

	snprintf(above, sizeof above, "%s", folder);
	cut = strrchr(above, '/');
	if (cut != NULL && cut != above) {
		*cut = '\0';
		mkdir(above, 0755);
	}
	mkdir(folder, 0755);
}

/* A folder in which nobody else can put a file, or a link, under our name; -1 for none. */
static int open_folder(const char *folder)
{
	struct stat about;
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 && errno == ENOENT) {
		make_folder(folder);
		fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	}
	if (fd < 0)
		return -1;
	if (fstat(fd, &about) == 0 && about.st_uid == geteuid() && (about.st_mode & 022) == 0)
		return fd;
	close(fd);
	errno = EPERM;
	return -1;
}

void exits_open(spank_t sp, const char *folder)
{
	uint32_t job = 0, number = 0;
	gid_t group = 0;

	if (folder[0] == '\0' || spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_STEPID, &number) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_GID, &group) != ESPANK_SUCCESS)
		return;
	file.folder = open_folder(folder);
	if (file.folder < 0) {
		slurm_debug("robust: step: exits are not told: %s: %s", folder, strerror(errno));
		return;
	}
	/* Several nodes, of several clusters, may live on one machine. */
	snprintf(file.name, sizeof file.name, "%u.%u-%d", job, number, (int)getpid());
	snprintf(file.path, sizeof file.path, "%s/%s", folder, file.name);
	/* What a killed slurmstepd of the same pid has left. */
	unlinkat(file.folder, file.name, 0);
	file.fd = openat(file.folder, file.name, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
	/* Root's still: a user could fill the folder's file system through a file of the user's own. */
	if (file.fd < 0 || fchown(file.fd, (uid_t)-1, group) != 0 || fchmod(file.fd, 0640) != 0) {
		slurm_debug("robust: step: exits are not told: %s: %s", file.path, strerror(errno));
		exits_close();
	}
}

const char *exits_path(void)
{
	return file.path;
}

void exits_note(spank_t sp)
{
	char line[EXIT_LINE_BYTES];
	struct timespec now = {0};
	uint32_t task = 0;
	int status = 0;

	if (file.fd < 0 || spank_get_item(sp, S_TASK_GLOBAL_ID, &task) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_TASK_EXIT_STATUS, &status) != ESPANK_SUCCESS)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	exit_line(line, task, status, (long long)now.tv_sec, now.tv_nsec);
	if (write(file.fd, line, strlen(line)) < 0)
		slurm_debug("robust: task: its exit is not told: %s: %s", file.path, strerror(errno));
}

void exits_close(void)
{
	if (file.folder >= 0 && file.name[0] != '\0')
		unlinkat(file.folder, file.name, 0);
	let_go();
}
