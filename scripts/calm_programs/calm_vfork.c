/* Stands in the kernel (state D) until its child, made by vfork, has slept for some seconds. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words) {
    double wanted = count > 1 ? atof(words[1]) : 1;
    pid_t child = vfork();
    if (child == 0) {
        usleep((useconds_t)(wanted * 1e6));
        _exit(0);
    }
    waitpid(child, NULL, 0);
    return 0;
}
