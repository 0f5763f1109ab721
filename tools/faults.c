/* Preloaded before the C library: records every change of files below one folder, and lets chosen ones fail.
 *
 * tools/faults.py reads the record, and tools/fault_disk.py computes from it what a crash would have left. Python,
 * SQLite and the rest of the process make their changes through the functions below. (Memory-mapped files are not
 * recorded: only SQLite's index of its log is one, and it is rebuilt after a crash.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)
#define LOCKED(expression) (pthread_mutex_lock(&lock), result = (expression), pthread_mutex_unlock(&lock), result)

enum how { NEVER, ONCE, FROM_THEN_ON, SHORT };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX], *trace;
static size_t root_length, used, room;
static long count, place;
static int error, how;
static unsigned char tracked[1 << 16];

/* Begin to watch a folder. The n-th change fails with an error, or is cut short if it is a write. */
void faults_begin(const char *folder, long n, int code, int mode) {
    strncpy(root, folder, PATH_MAX - 1);
    used = count = 0, place = n, error = code, how = mode;
    root_length = strlen(root);
}

void faults_end(void) { root_length = 0; }
const char *faults_trace(size_t *length) { return *length = used, trace; }

static void append(const void *data, size_t length) {
    while (used + length > room) trace = realloc(trace, room = room ? 2 * room : 1 << 20);
    memcpy(trace + used, data, length);
    used += length;
}

static void record(char kind, uint64_t file, int64_t number, const void *a, uint32_t first, const void *b, uint32_t second) {
    append(&kind, 1), append(&file, 8), append(&number, 8), append(&first, 4), append(&second, 4);
    append(a, first), append(b, second);
}

/* A remark in the record. It is not a change. */
void faults_mark(const char *text) {
    pthread_mutex_lock(&lock);
    if (root_length) record('!', 0, 0, text, strlen(text), "", 0);
    pthread_mutex_unlock(&lock);
}

static int is_inside(const char *path) {
    return root_length && !strncmp(path, root, root_length) && (!path[root_length] || path[root_length] == '/');
}

static int is_tracked(int file) { return root_length && file >= 0 && file < (int)sizeof tracked && tracked[file]; }

/* Count a change, and return whether it fails. */
static int fails(void) {
    count++;
    int now = (how == ONCE && count == place) || (how == FROM_THEN_ON && count >= place);
    if (now) errno = error;
    return now;
}

static uint64_t inode(int file) {
    struct stat found;
    return fstat(file, &found) ? 0 : found.st_ino;
}

static int open_inside(int (*real)(const char *, int, ...), const char *path, int flags, mode_t mode) {
    struct stat before;
    int creates = lstat(path, &before) != 0 && (flags & O_CREAT), empties = (flags & O_TRUNC) && !creates;
    if ((creates || empties) && fails()) return -1;
    int file = real(path, flags, mode);
    if (file >= 0 && file < (int)sizeof tracked) {
        tracked[file] = 1;
        if (creates) record('c', inode(file), 0, path, strlen(path), "", 0);
        if (empties) record('t', inode(file), 0, "", 0, "", 0);
    }
    return file;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, name, const char *, int, ...); \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
        va_end(list); \
        int result; \
        return is_inside(path) ? LOCKED(open_inside(real, path, flags, mode)) : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

int close(int file) {
    REAL(int, close, int);
    if (file >= 0 && file < (int)sizeof tracked) tracked[file] = 0;
    return real(file);
}

static ssize_t write_inside(ssize_t (*real)(int, const void *, size_t, off_t), int file, const void *data, size_t length, off_t offset) {
    if (fails()) return -1;
    if (how == SHORT && count == place && length > 1) length /= 2;
    ssize_t written = real(file, data, length, offset);
    if (written >= 0) record('w', inode(file), offset, data, written, "", 0);
    return written;
}

static ssize_t plain_write(int file, const void *data, size_t length, off_t offset) {
    REAL(ssize_t, write, int, const void *, size_t);
    (void)offset;
    return real(file, data, length);
}

ssize_t write(int file, const void *data, size_t length) {
    if (!is_tracked(file)) return plain_write(file, data, length, 0);
    off_t offset = lseek(file, 0, fcntl(file, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
    ssize_t result;
    return LOCKED(write_inside(plain_write, file, data, length, offset));
}

#define PWRITE(name) \
    ssize_t name(int file, const void *data, size_t length, off_t offset) { \
        REAL(ssize_t, name, int, const void *, size_t, off_t); \
        ssize_t result; \
        return is_tracked(file) ? LOCKED(write_inside(real, file, data, length, offset)) : real(file, data, length, offset); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

static int on_file(int (*real)(int), char kind, int file) {
    if (fails()) return -1;
    record(kind, inode(file), 0, "", 0, "", 0);
    return real(file);
}

#define SYNC(name) \
    int name(int file) { \
        REAL(int, name, int); \
        int result; \
        return is_tracked(file) ? LOCKED(on_file(real, 's', file)) : real(file); \
    }
SYNC(fsync)
SYNC(fdatasync)

static int cut(int (*real)(int, off_t), int file, off_t length) {
    if (fails()) return -1;
    record('t', inode(file), length, "", 0, "", 0);
    return real(file, length);
}

#define TRUNCATE(name) \
    int name(int file, off_t length) { \
        REAL(int, name, int, off_t); \
        int result; \
        return is_tracked(file) ? LOCKED(cut(real, file, length)) : real(file, length); \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

static int on_path(int done, char kind, const char *path, const char *other) {
    if (!done) record(kind, 0, 0, path, strlen(path), other, strlen(other));
    return done;
}

int rename(const char *old, const char *new) {
    REAL(int, rename, const char *, const char *);
    int result;
    return is_inside(new) ? LOCKED(fails() ? -1 : on_path(real(old, new), 'r', old, new)) : real(old, new);
}

static int on_existing(int (*real)(const char *), char kind, const char *path) {
    struct stat found;
    if (lstat(path, &found)) return real(path); /* nothing would change */
    return fails() ? -1 : on_path(real(path), kind, path, "");
}

#define REMOVE(name, kind) \
    int name(const char *path) { \
        REAL(int, name, const char *); \
        int result; \
        return is_inside(path) ? LOCKED(on_existing(real, kind, path)) : real(path); \
    }
REMOVE(unlink, 'u')
REMOVE(rmdir, 'd')

static int make(int (*real)(const char *, mode_t), const char *path, mode_t mode) {
    struct stat found;
    if (!lstat(path, &found)) return real(path, mode);
    if (fails()) return -1;
    int done = real(path, mode);
    struct stat made;
    if (!done && !stat(path, &made)) record('m', made.st_ino, 0, path, strlen(path), "", 0);
    return done;
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    int result;
    return is_inside(path) ? LOCKED(make(real, path, mode)) : real(path, mode);
}
