/* Preloaded into a process (LD_PRELOAD): counts its calls that change, or read, files below a directory, and lets the
   N-th of them kill the process, tear the write, or fail with an error number. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KILL = -1, TEAR = -2 }; /* actions; a positive action is an error number */

static char root[4096];
static long target = -1;
static int action, counts_reads, log_descriptor = -1;
static atomic_long seen;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Watch the directory `path`; act at call number `number` (from 0 on; -1: only log). */
void faults_arm(const char *path, long number, int what, int reads, const char *log) {
    snprintf(root, sizeof root, "%s", path);
    target = number, action = what, counts_reads = reads;
    atomic_store(&seen, 0);
    log_descriptor = *log ? REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
}

void faults_disarm(void) { root[0] = 0; }

static void absolute(int directory, const char *path, char *out, size_t size) {
    char start[4096] = "";
    if (path[0] == '/') {
        snprintf(out, size, "%s", path);
        return;
    }
    if (directory == AT_FDCWD) {
        if (!getcwd(start, sizeof start)) start[0] = 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, start, sizeof start - 1);
        start[length > 0 ? length : 0] = 0;
    }
    snprintf(out, size, "%s%s%s", start, *path ? "/" : "", path);
}

/* Count a call; return 0 to let it happen, an error number to let it fail, or TEAR. */
static int point(const char *call, int directory, const char *path) {
    if (!root[0]) return 0;
    char full[8192];
    int before = errno;
    absolute(directory, path, full, sizeof full);
    errno = before;
    size_t length = strlen(root);
    if (strncmp(full, root, length) != 0 || (full[length] != '/' && full[length] != 0)) return 0;
    long number = atomic_fetch_add(&seen, 1);
    if (log_descriptor >= 0) {
        char line[9000];
        int size = snprintf(line, sizeof line, "%s %s\n", call, full + length);
        if (REAL(write)(log_descriptor, line, size) != size) _exit(99);
        errno = before;
    }
    if (number != target) return 0;
    if (action == KILL) kill(getpid(), SIGKILL);
    return action;
}

static int at_file(const char *call, int descriptor) { return point(call, descriptor, ""); }

static int at_open(int directory, const char *path, int flags) {
    if (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) return counts_reads ? 0 : point("open", directory, path);
    return counts_reads && !(flags & O_DIRECTORY) ? point("read", directory, path) : 0;
}

/* Only `write` can be torn; at other calls TEAR is KILL. */
#define FAIL_OR(fault, real) ({ int f_ = (fault); if (f_ < 0) kill(getpid(), SIGKILL); f_ > 0 ? (errno = f_, -1) : (real); })
#define WRITES(fault) (counts_reads ? 0 : (fault))

#define OPEN(name)                                                              \
    int name(const char *path, int flags, ...) {                                \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        return FAIL_OR(at_open(AT_FDCWD, path, flags), REAL(name)(path, flags, mode)); \
    }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                                            \
    int name(int directory, const char *path, int flags, ...) {                 \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        return FAIL_OR(at_open(directory, path, flags), REAL(name)(directory, path, flags, mode)); \
    }
OPENAT(openat)
OPENAT(openat64)
int creat(const char *p, mode_t m) { return FAIL_OR(at_open(AT_FDCWD, p, O_WRONLY | O_CREAT | O_TRUNC), REAL(creat)(p, m)); }
int creat64(const char *p, mode_t m) { return FAIL_OR(at_open(AT_FDCWD, p, O_WRONLY | O_CREAT | O_TRUNC), REAL(creat64)(p, m)); }

ssize_t write(int descriptor, const void *bytes, size_t size) {
    int fault = WRITES(at_file("write", descriptor));
    if (fault == TEAR) {
        if (size > 1) (void)!REAL(write)(descriptor, bytes, size / 2);
        kill(getpid(), SIGKILL);
    }
    return FAIL_OR(fault, REAL(write)(descriptor, bytes, size));
}
ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    return FAIL_OR(WRITES(at_file("write", descriptor)), REAL(writev)(descriptor, parts, count));
}
ssize_t pwrite(int d, const void *b, size_t n, off_t o) { return FAIL_OR(WRITES(at_file("write", d)), REAL(pwrite)(d, b, n, o)); }
ssize_t pwrite64(int d, const void *b, size_t n, off64_t o) { return FAIL_OR(WRITES(at_file("write", d)), REAL(pwrite64)(d, b, n, o)); }
ssize_t sendfile64(int out, int in, off64_t *o, size_t n) {
    ssize_t (*real)(int, int, off64_t *, size_t) = dlsym(RTLD_NEXT, "sendfile64");
    return FAIL_OR(WRITES(at_file("write", out)), real(out, in, o, n));
}
ssize_t copy_file_range(int in, off64_t *i, int out, off64_t *o, size_t n, unsigned f) {
    return FAIL_OR(WRITES(at_file("write", out)), REAL(copy_file_range)(in, i, out, o, n, f));
}
int fsync(int d) { return FAIL_OR(WRITES(at_file("fsync", d)), REAL(fsync)(d)); }
int fdatasync(int d) { return FAIL_OR(WRITES(at_file("fsync", d)), REAL(fdatasync)(d)); }
int ftruncate(int d, off_t n) { return FAIL_OR(WRITES(at_file("truncate", d)), REAL(ftruncate)(d, n)); }
int ftruncate64(int d, off64_t n) { return FAIL_OR(WRITES(at_file("truncate", d)), REAL(ftruncate64)(d, n)); }
int truncate(const char *p, off_t n) { return FAIL_OR(WRITES(point("truncate", AT_FDCWD, p)), REAL(truncate)(p, n)); }
int rename(const char *a, const char *b) { return FAIL_OR(WRITES(point("rename", AT_FDCWD, b)), REAL(rename)(a, b)); }
int renameat(int d, const char *a, int e, const char *b) { return FAIL_OR(WRITES(point("rename", e, b)), REAL(renameat)(d, a, e, b)); }
int link(const char *a, const char *b) { return FAIL_OR(WRITES(point("link", AT_FDCWD, b)), REAL(link)(a, b)); }
int linkat(int d, const char *a, int e, const char *b, int f) {
    return FAIL_OR(WRITES(point("link", e, b)), REAL(linkat)(d, a, e, b, f));
}
int unlink(const char *p) { return FAIL_OR(WRITES(point("unlink", AT_FDCWD, p)), REAL(unlink)(p)); }
int unlinkat(int d, const char *p, int f) { return FAIL_OR(WRITES(point("unlink", d, p)), REAL(unlinkat)(d, p, f)); }
int rmdir(const char *p) { return FAIL_OR(WRITES(point("rmdir", AT_FDCWD, p)), REAL(rmdir)(p)); }
int mkdir(const char *p, mode_t m) { return FAIL_OR(WRITES(point("mkdir", AT_FDCWD, p)), REAL(mkdir)(p, m)); }
int mkdirat(int d, const char *p, mode_t m) { return FAIL_OR(WRITES(point("mkdir", d, p)), REAL(mkdirat)(d, p, m)); }
int chmod(const char *p, mode_t m) { return FAIL_OR(WRITES(point("chmod", AT_FDCWD, p)), REAL(chmod)(p, m)); }
int fchmod(int d, mode_t m) { return FAIL_OR(WRITES(at_file("chmod", d)), REAL(fchmod)(d, m)); }
