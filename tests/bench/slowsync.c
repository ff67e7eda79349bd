// Preloaded into Postgres: makes each flush slower by as many microseconds as the file named by SLOWSYNC_FILE says
// at that moment, as a slower disk or a synchronous replica would.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void linger(void) {
    static int file = -1;
    char text[16] = "";
    if (file < 0) {
        const char *path = getenv("SLOWSYNC_FILE");
        if (!path || (file = open(path, O_RDONLY | O_CLOEXEC)) < 0) return;
    }
    if (pread(file, text, sizeof text - 1, 0) <= 0) return;
    long us = atol(text);
    if (us <= 0) return;
    struct timespec pause = {us / 1000000, (us % 1000000) * 1000};
    nanosleep(&pause, NULL);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int done = real(fd);
    linger();
    return done;
}
