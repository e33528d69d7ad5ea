/* Loaded before libc (LD_PRELOAD), shows a program an x86 CPU with AVX2 and without AVX-512, AVX-VNNI and AMX: what
   `cpuid` answers and what /proc/cpuinfo says. Programs that choose their code by features run the code of such a CPU;
   its caches and clock stay those of the real one. Needs Linux, and an Intel CPU that can refuse `cpuid` to a program
   (cpuid_fault among the flags of /proc/cpuinfo). Each program that is started inherits it through the environment. */

#define _GNU_SOURCE
#include <asm/prctl.h>
#include <cpuid.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define BROADWELL 0x406f1u /* leaf 1: family 6, model 79; compilers take features from the name of a model too */
#define CPUID_INSTRUCTION 0xa20f

static void refuse_cpuid(int refuse) { syscall(SYS_arch_prctl, ARCH_SET_CPUID, !refuse); }

static void answer(unsigned leaf, unsigned part, unsigned out[4]) {
    __cpuid_count(leaf, part, out[0], out[1], out[2], out[3]);
    if (leaf == 1) out[0] = BROADWELL;
    if (leaf == 7 && part == 0) {
        out[1] &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
        out[2] &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
        out[3] &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);
    }
    if (leaf == 7 && part == 1) out[0] = out[1] = out[2] = out[3] = 0; /* AVX-VNNI, AVX512_BF16, AMX_FP16, AVX10 */
}

static int real_sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    static int (*real)(int, const struct sigaction *, struct sigaction *);
    if (real == NULL) real = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
    return real(number, action, old);
}

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned short instruction;
    memcpy(&instruction, (void *)registers[REG_RIP], sizeof instruction);
    if (instruction != CPUID_INSTRUCTION) { /* a real fault: once more, without us */
        struct sigaction none = {.sa_handler = SIG_DFL};
        real_sigaction(number, &none, NULL);
        return;
    }
    unsigned out[4];
    refuse_cpuid(0);
    answer((unsigned)registers[REG_RAX], (unsigned)registers[REG_RCX], out);
    refuse_cpuid(1);
    registers[REG_RAX] = out[0];
    registers[REG_RBX] = out[1];
    registers[REG_RCX] = out[2];
    registers[REG_RDX] = out[3];
    registers[REG_RIP] += 2;
}

/* Ours stays, whoever asks for another: compilers, and Python's faulthandler. */
int sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    return number == SIGSEGV && action != NULL ? 0 : real_sigaction(number, action, old);
}

void (*signal(int number, void (*handler)(int)))(int) {
    static void (*(*real)(int, void (*)(int)))(int);
    if (real == NULL) real = (void (*(*)(int, void (*)(int)))(int))dlsym(RTLD_NEXT, "signal");
    return number == SIGSEGV ? SIG_DFL : real(number, handler);
}

static int is_hidden(const char *flag) {
    return strncmp(flag, "avx512", 6) == 0 || strncmp(flag, "amx", 3) == 0 || strncmp(flag, "avx_vnni", 8) == 0;
}

/* /proc/cpuinfo without the flags; as a file that holds it. */
static int described(void) {
    int in = (int)syscall(SYS_openat, AT_FDCWD, "/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    int out = memfd_create("cpuinfo", MFD_CLOEXEC);
    if (in < 0 || out < 0) abort();
    FILE *source = fdopen(in, "r");
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, source) > 0) {
        int of_flags = strncmp(line, "flags", 5) == 0;
        for (char *word = line, *end; *word; word = end) {
            end = word + strcspn(word, " \n");
            end += *end == ' ';
            if (*word == '\n') end = word + 1;
            if (of_flags && is_hidden(word)) continue;
            if (write(out, word, (size_t)(end - word)) < 0) abort();
        }
    }
    free(line);
    fclose(source);
    lseek(out, 0, SEEK_SET);
    return out;
}

#define OPEN(name)                                                                  \
    int name(const char *path, int flags, ...) {                                    \
        va_list more;                                                               \
        va_start(more, flags);                                                      \
        int mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(more, int) : 0;       \
        va_end(more);                                                               \
        if (strcmp(path, "/proc/cpuinfo") == 0) return described();                 \
        return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode); \
    }
OPEN(open)
OPEN(open64)

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    real_sigaction(SIGSEGV, &action, NULL);
    refuse_cpuid(1);
}
