/* Loaded before libc (LD_PRELOAD), keeps what would be left of a folder after a power failure: of a file what was in it
   at its last fsync, of a directory the names that were in it at its own. Stricter than usual file systems.

   POWER_LOSS_FOLDER: the folder. POWER_LOSS_KEPT: where that is kept, as inodes/NUMBER (contents) and dirs/NAME (a line
   "NUMBER NAME" for each entry; of the path, slashes are percent signs). */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_file(int fd, const struct stat *info, const char *kept) {
    char name[PATH_MAX], fresh[PATH_MAX + 8], source[64];
    snprintf(name, sizeof name, "%s/inodes/%lu", kept, (unsigned long)info->st_ino);
    snprintf(fresh, sizeof fresh, "%s.new", name);
    snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    int in = open(source, O_RDONLY), out = open(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (in < 0 || out < 0) abort();
    for (off_t left = info->st_size; left > 0;) {
        ssize_t count = sendfile(out, in, NULL, (size_t)left);
        if (count <= 0) break;
        left -= count;
    }
    close(in);
    close(out);
    rename(fresh, name);
}

static void keep_directory(const char *path, const char *folder, const char *kept) {
    char name[PATH_MAX], fresh[PATH_MAX + 8], relative[PATH_MAX];
    snprintf(relative, sizeof relative, "%%%s", path + strlen(folder));
    for (char *c = relative; *c; c++)
        if (*c == '/') *c = '%';
    snprintf(name, sizeof name, "%s/dirs/%s", kept, relative);
    snprintf(fresh, sizeof fresh, "%s.new", name);
    FILE *out = fopen(fresh, "w");
    DIR *entries = opendir(path);
    if (out == NULL || entries == NULL) abort();
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            fprintf(out, "%lu %s\n", (unsigned long)entry->d_ino, entry->d_name);
    closedir(entries);
    fclose(out);
    rename(fresh, name);
}

static void keep(int fd) {
    const char *folder = getenv("POWER_LOSS_FOLDER"), *kept = getenv("POWER_LOSS_KEPT");
    char source[64], path[PATH_MAX];
    struct stat info;
    if (folder == NULL || kept == NULL || fstat(fd, &info) != 0) return;
    snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(source, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder)) != 0) return;
    pthread_mutex_lock(&lock);
    if (S_ISDIR(info.st_mode))
        keep_directory(path, folder, kept);
    else
        keep_file(fd, &info, kept);
    pthread_mutex_unlock(&lock);
}

int fsync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    int result = next(fd);
    if (result == 0) keep(fd);
    return result;
}

int fdatasync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int result = next(fd);
    if (result == 0) keep(fd);
    return result;
}
