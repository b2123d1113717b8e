/* Lets a CUDA program leave its MPS server before it ends, so that the server's other clients go on.
 *
 * An MPS client that ends while it has work on the GPU takes all clients of its server along, whether a signal, an
 * exception or the end of its script ended it (gpumem docs node, "Ends"). The CUDA driver loads this library when a
 * program initializes CUDA (CUDA_INJECTION64_PATH, set by task_prolog.sh) and calls InitializeInjection.
 *
 * - At exit: wait for the GPU.
 * - At a signal that would end the process and that it does not handle itself: ask the node's sampler, over the socket
 *   GPUMEM_END_SOCKET, to take this process from the MPS server; then end of that signal as before. A handler that the
 *   program sets, before or after, replaces ours.
 *
 * The node's own signal before a time slot's end (slurm_gpumem/node/sampler/slots.py) is for programs that handle it; one that
 * does not goes on as if it had not come.
 *
 * A thread does the asking, and the interrupted one goes on meanwhile: it may hold a lock of the driver's that the MPS
 * server needs to let the client go. Where it cannot go on, the asking is short. Everything that can fail leaves the program as it would be without us.
 * Built by build_end.sh.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST_DEVICES 16
#define PATIENCE_S 27 /* the server waits for what is queued; Slurm kills after KillWait, 30 s by default */
#define FATAL_PATIENCE_S 5

static const int ENDING[] = {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGXCPU};
static const int FATAL[] = {SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGPIPE, SIGXFSZ};
#define SLOT_MARK 0x510750
#define COUNT(list) (sizeof(list) / sizeof *(list))

static struct sockaddr_un sampler;
static pid_t owner;
static sem_t woken;
static volatile sig_atomic_t ending, patience_s = PATIENCE_S;

static int (*device_count)(int *);
static int (*primary_state)(int, unsigned *, int *);
static int (*primary_retain)(void **, int);
static int (*set_current)(void *);
static int (*synchronize)(void);

/* The sampler knows who asks from the kernel, and closes the connection when the MPS server has let this process go. */
static void leave_server(void) {
    struct timeval patience = {patience_s, 0};
    char byte = 0;
    int handle = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (handle < 0) return;
    setsockopt(handle, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(handle, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(handle, (struct sockaddr *)&sampler, sizeof sampler) == 0)
        while (recv(handle, &byte, 1, 0) < 0 && errno == EINTR) continue;
    close(handle);
}

static void *leave_and_end(void *unused) {
    sigset_t all;
    (void)unused;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (sem_wait(&woken) != 0) continue;
    leave_server();
    signal(ending, SIG_DFL);
    /* Others may block it: one that failed does, in its handler. */
    pthread_sigmask(SIG_UNBLOCK, &all, NULL);
    raise(ending);
    return NULL;
}

static void on_ending_signal(int number, siginfo_t *info, void *unused) {
    int saved = errno;
    (void)unused;
    if (info != NULL && info->si_code == SI_QUEUE && info->si_value.sival_int == SLOT_MARK) return;
    /* A forked child has neither CUDA nor that thread. */
    if (getpid() != owner) {
        signal(number, SIG_DFL);
        raise(number);
    } else if (!ending) {
        ending = number;
        sem_post(&woken);
    }
    errno = saved;
}

/* The thread must not go on: what it did would fail again, and again. It may hold the lock that the server needs, and
 * then nobody answers: so not for long. */
static void on_fatal_signal(int number, siginfo_t *info, void *unused) {
    if (!ending) patience_s = FATAL_PATIENCE_S;
    on_ending_signal(number, info, unused);
    while (getpid() == owner) pause();
}

static void at_exit(void) {
    int count = 0, active = 0;
    unsigned flags = 0;
    void *context = NULL;
    if (getpid() != owner) return;
    while (ending) pause(); /* of the signal, and not with exit's code */
    if (device_count == NULL || device_count(&count) != 0) return;
    synchronize();
    for (int device = 0; device < count && device < MOST_DEVICES; device++) {
        if (primary_state(device, &flags, &active) != 0 || !active) continue;
        if (primary_retain(&context, device) == 0 && set_current(context) == 0) synchronize();
    }
}

static int find_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == NULL) return 0;
    device_count = (int (*)(int *))dlsym(driver, "cuDeviceGetCount");
    primary_state = (int (*)(int, unsigned *, int *))dlsym(driver, "cuDevicePrimaryCtxGetState");
    primary_retain = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    set_current = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    synchronize = (int (*)(void))dlsym(driver, "cuCtxSynchronize");
    return device_count && primary_state && primary_retain && set_current && synchronize;
}

static void handle(const int *numbers, size_t count, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction ours, now;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = handler;
    ours.sa_flags = SA_RESTART | SA_SIGINFO;
    for (size_t at = 0; at < count; at++)
        if (sigaction(numbers[at], NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL)
            sigaction(numbers[at], &ours, NULL);
}

int InitializeInjection(void) {
    const char *path = getenv("GPUMEM_END_SOCKET");
    pthread_t thread;
    if (owner == getpid()) return 1;
    owner = getpid();
    ending = 0;
    if (!find_driver()) device_count = NULL;
    atexit(at_exit);
    if (path == NULL || strlen(path) >= sizeof sampler.sun_path) return 1;
    sampler.sun_family = AF_UNIX;
    strcpy(sampler.sun_path, path);
    if (sem_init(&woken, 0, 0) != 0 || pthread_create(&thread, NULL, leave_and_end, NULL) != 0) return 1;
    pthread_detach(thread);
    handle(ENDING, COUNT(ENDING), on_ending_signal);
    handle(FATAL, COUNT(FATAL), on_fatal_signal);
    return 1;
}
