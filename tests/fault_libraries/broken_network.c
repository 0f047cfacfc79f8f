/* Breaks what Python processes of some nodes send each other over TCP. It is preloaded into them, below PyTorch.
 *
 * BROKEN_NETWORK=WHO:FAULT[;WHO:FAULT…]. WHO is a node, or two with a comma between them: then only what these two send
 * each other is broken. FAULT is `corrupt` (one bit of a message is turned), `drop` (the message never arrives) or `slow`
 * (each message takes 0.3 s longer). Messages of less than 256 bytes are left alone.
 *
 * BROKEN_NETWORK_DIR is a folder that all nodes share. It holds a link for each port that such a process has, which
 * leads to the name of the node. Nothing is broken before it holds a file named `begin`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { FDS = 4096, LEAST_BYTES = 256, NAME = 64 };

typedef ssize_t (*writev_call)(int, const struct iovec *, int);
static char peers[FDS][NAME]; /* the node at the other end; empty while unknown */

static const char *own_node(void) {
    const char *name = getenv("SLURMD_NODENAME");
    /* Slurm's own commands are started with our variables, too. */
    return name && !strncmp(program_invocation_short_name, "python", 6) ? name : "";
}

static int port_of(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) return ntohs(((const struct sockaddr_in *)address)->sin_port);
    if (address->sa_family == AF_INET6) return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
    return -1;
}

static int path_of(char *path, size_t size, const char *name) {
    const char *folder = getenv("BROKEN_NETWORK_DIR");
    return folder && snprintf(path, size, "%s/%s", folder, name) < (int)size;
}

/* Tell the others that the port at our end of this socket is on this node. */
static void tell(int fd) {
    int error = errno; /* that of the call that we stand in for */
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    char name[16], path[512];
    if (!*own_node()) return;
    if (!getsockname(fd, (struct sockaddr *)&address, &length) && port_of((struct sockaddr *)&address) > 0) {
        snprintf(name, sizeof name, "%d", port_of((struct sockaddr *)&address));
        if (path_of(path, sizeof path, name)) {
            unlink(path);
            if (symlink(own_node(), path)) path[0] = 0;
        }
    }
    errno = error;
}

static const char *peer_of(int fd) {
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    char name[16], path[512];
    if (fd < 0 || fd >= FDS) return "";
    if (peers[fd][0]) return peers[fd];
    if (getpeername(fd, (struct sockaddr *)&address, &length) || port_of((struct sockaddr *)&address) <= 0) return "";
    snprintf(name, sizeof name, "%d", port_of((struct sockaddr *)&address));
    if (!path_of(path, sizeof path, name)) return "";
    ssize_t count = readlink(path, peers[fd], NAME - 1);
    peers[fd][count > 0 ? count : 0] = 0;
    return peers[fd];
}

/* The fault of what this node sends through `fd`, empty for none. */
static const char *fault_of(int fd) {
    static char found[16];
    char path[512], spec[1024], *rest = NULL;
    const char *given = getenv("BROKEN_NETWORK"), *own = own_node();
    if (!given || !*own || !path_of(path, sizeof path, "begin") || access(path, F_OK)) return "";
    snprintf(spec, sizeof spec, "%s", given);
    for (char *one = strtok_r(spec, ";", &rest); one; one = strtok_r(NULL, ";", &rest)) {
        char *fault = strchr(one, ':'), *other = strchr(one, ',');
        if (!fault) continue;
        *fault++ = 0;
        if (other) *other++ = 0;
        const char *peer = peer_of(fd);
        int hit = other ? (!strcmp(own, one) && !strcmp(peer, other)) || (!strcmp(own, other) && !strcmp(peer, one))
                        : *peer && strcmp(peer, own) && (!strcmp(own, one) || !strcmp(peer, one));
        if (hit) {
            snprintf(found, sizeof found, "%s", fault);
            return found;
        }
    }
    return "";
}

int connect(int fd, const struct sockaddr *address, socklen_t length) {
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    int result = next(fd, address, length);
    if (fd >= 0 && fd < FDS) peers[fd][0] = 0;
    if (port_of(address) > 0) tell(fd);
    return result;
}

int listen(int fd, int backlog) {
    int (*next)(int, int) = dlsym(RTLD_NEXT, "listen");
    tell(fd);
    return next(fd, backlog);
}

int accept(int fd, struct sockaddr *address, socklen_t *length) {
    int (*next)(int, struct sockaddr *, socklen_t *) = dlsym(RTLD_NEXT, "accept");
    int result = next(fd, address, length);
    if (result >= 0 && result < FDS) peers[result][0] = 0;
    return result;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    writev_call next = (writev_call)dlsym(RTLD_NEXT, "writev");
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += parts[i].iov_len;
    if (bytes < LEAST_BYTES) return next(fd, parts, count);
    const char *fault = fault_of(fd);
    if (!strcmp(fault, "drop")) return (ssize_t)bytes;
    if (!strcmp(fault, "slow")) {
        struct timespec pause = {0, 300 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    if (strcmp(fault, "corrupt")) return next(fd, parts, count);
    char *copy = malloc(bytes), *end = copy;
    for (int i = 0; i < count; i++) end = mempcpy(end, parts[i].iov_base, parts[i].iov_len);
    copy[bytes - 6] ^= 0x10;
    struct iovec whole = {copy, bytes};
    ssize_t sent = next(fd, &whole, 1);
    free(copy);
    return sent;
}
