/* A token in a ring of Slurm's tasks, over socket files: PAUSE_S SPIN [CODE]. Rank 1 keeps it once for PAUSE_S. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct sockaddr_un at(int rank) {
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    const char *again = getenv("SLURM_RESTART_COUNT");
    snprintf(place.sun_path, sizeof place.sun_path, "ring-%d.%s.%s", rank, again ? again : "0", getenv("SLURM_STEP_ID"));
    return place;
}

static void token(int peer, int spin) {
    char byte;
    if (spin) fcntl(peer, F_SETFL, O_NONBLOCK);
    while (read(peer, &byte, 1) != 1) usleep(500);
}

int main(int count, char **words) {
    int spin = atoi(words[2]);
    int rank = atoi(getenv("SLURM_PROCID")), size = atoi(getenv("SLURM_NTASKS"));
    FILE *starts = fopen("starts", "a");
    fprintf(starts, "ring %d\n", rank);
    fclose(starts);
    int server = socket(AF_UNIX, SOCK_STREAM, 0), next = -1;
    struct sockaddr_un mine = at(rank), theirs = at((rank + 1) % size);
    if (bind(server, (struct sockaddr *)&mine, sizeof mine) || listen(server, 1)) return 9;
    for (;;) {
        next = socket(AF_UNIX, SOCK_STREAM, 0);
        if (!connect(next, (struct sockaddr *)&theirs, sizeof theirs)) break;
        close(next);
        usleep(100000);
    }
    int before = accept(server, NULL, NULL);
    for (int lap = 0; lap < 30; lap++) {
        if (rank || lap) token(before, spin);
        usleep(rank == 1 && lap == 20 ? (useconds_t)(atof(words[1]) * 1e6) : 100000);
        if (rank == 0) printf("lap %d\n", lap), fflush(stdout);
        if (write(next, "t", 1) != 1) return 8;
    }
    if (rank == 0) token(before, spin);
    return count > 3 ? atoi(words[3]) : 0;
}
