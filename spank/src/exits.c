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

static void close_files(void)
{
	if (file.fd >= 0)
		close(file.fd);
	if (file.folder >= 0)
		close(file.folder);
	file.fd = file.folder = -1;
	file.path[0] = '\0';
}

/* Make the folder and its parent, where they do not exist. */
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

/* Open a folder in which nobody else can make a file or a link of our name; -1 where it is none. */
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
		slurm_debug("robust: step: exits are not recorded: %s: %s", folder, strerror(errno));
		return;
	}
	/* One machine may run several nodes, of several clusters. */
	snprintf(file.name, sizeof file.name, "%u.%u-%d", job, number, (int)getpid());
	snprintf(file.path, sizeof file.path, "%s/%s", folder, file.name);
	/* Remove the file of a killed slurmstepd with the same pid. */
	unlinkat(file.folder, file.name, 0);
	file.fd = openat(file.folder, file.name, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
	/* It stays root's: through a file of their own, users could fill the file system. */
	if (file.fd < 0 || fchown(file.fd, (uid_t)-1, group) != 0 || fchmod(file.fd, 0640) != 0) {
		slurm_debug("robust: step: exits are not recorded: %s: %s", file.path, strerror(errno));
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
		slurm_debug("robust: task: its exit is not recorded: %s: %s", file.path, strerror(errno));
}

void exits_close(void)
{
	if (file.folder >= 0 && file.name[0] != '\0')
		unlinkat(file.folder, file.name, 0);
	close_files();
}
