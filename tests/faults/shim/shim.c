// Preloaded into a node: its disk and its clock as the harness wants them.
//
// The file that QUOIN_FAULTS names is mapped, so a fault begins and ends while the node runs:
//   int32 at 0: what fsync and fdatasync do: 0 work, 1 fail with EIO, 2 hang, 3 take the time at 4 longer
//   int32 at 4: that time, in milliseconds
//   int64 at 8: by how many milliseconds the wall clock is ahead; the monotonic clock is left alone
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct control {
    volatile int32_t sync, sync_ms;
    volatile int64_t clock_ms;
};

static struct control none, *control = &none;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("QUOIN_FAULTS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) control = mapped;
    close(file);
}

static void pause_ms(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

// -1 if the sync is to fail. A hanging one goes on when the fault ends.
static int before_sync(void) {
    if (control->sync == 3) pause_ms(control->sync_ms);
    while (control->sync == 2) pause_ms(5);
    if (control->sync != 1) return 0;
    errno = EIO;
    return -1;
}

int fsync(int file) {
    return before_sync() ? -1 : (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    return before_sync() ? -1 : (int)syscall(SYS_fdatasync, file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    int64_t ahead = control->clock_ms;
    if (result || !ahead || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
    int64_t sum = time->tv_nsec + ahead % 1000 * 1000000;
    time->tv_sec += ahead / 1000 + (sum < 0 ? -1 : sum / 1000000000);
    time->tv_nsec = sum < 0 ? sum + 1000000000 : sum % 1000000000;
    return 0;
}
