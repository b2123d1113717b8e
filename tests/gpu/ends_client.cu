// A CUDA program without Python: `ends_client train|ignore|leave|watch|fault`. It always has work on the GPU.
// `ends_client hold MIB sleep|ignore|stop|trace|quarters|busy` holds memory, in one way or another for good.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

__global__ void spin(float *data, int count, long long cycles) {
    long long start = clock64();
    int at = (blockIdx.x * blockDim.x + threadIdx.x) % count;
    float value = data[at];
    while (clock64() - start < cycles) value = value * 1.0001f + 1e-6f;
    data[at] = value;
}

// Each process that it starts is started before there is anything of CUDA.
int hold(size_t mib, const char *way) {
    bool traced = !strcmp(way, "trace"), stopped = !strcmp(way, "stop"), quarters = !strcmp(way, "quarters");
    if (!strcmp(way, "ignore")) signal(SIGTERM, SIG_IGN);
    pid_t me = getpid();
    int begins[2];
    if (pipe(begins)) return 5;
    if (stopped && fork() == 0) {
        char byte;
        close(begins[1]);
        if (read(begins[0], &byte, 1) == 1)
            while (getppid() == me && kill(me, SIGSTOP) == 0) usleep(10000);
        return 0;
    }
    for (int child = 0; child < (quarters ? 4 : traced ? 1 : 0); child++) {
        if (fork()) continue;
        me = 0;
        break;
    }
    if ((quarters || traced) && me) {
        // A tracer that lets nothing go on: what it has stopped stays so.
        for (int status; waitpid(-1, &status, 0) > 0;) {}
        return 0;
    }
    char *data;
    if (cudaMalloc(&data, (mib << 20) / (quarters ? 4 : 1)) || cudaDeviceSynchronize()) return 4;
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    printf("ready\nover %d %.2f\n", getpid(), now.tv_sec + now.tv_nsec / 1e9);
    fflush(stdout);
    if (stopped && write(begins[1], "!", 1) != 1) return 5;
    if (traced && ptrace(PTRACE_TRACEME, 0, 0, 0) == 0) raise(SIGSTOP);
    while (strcmp(way, "busy")) sleep(60);
    for (cudaError_t error = cudaSuccess; error == cudaSuccess; error = cudaDeviceSynchronize())
        spin<<<256, 256>>>((float *)data, 1 << 20, 4000000);
    return 3;
}

int main(int count, char **words) {
    const char *part = count > 1 ? words[1] : "train";
    if (count > 3) return hold(atol(words[2]), words[3]);
    if (!strcmp(part, "ignore")) signal(SIGTERM, SIG_IGN);
    float *data;
    int size = 16 << 20;
    if (cudaMalloc(&data, size * sizeof(float))) return 4;
    for (long step = 0;; step += 24) {
        bool watches = !strcmp(part, "watch");
        for (int launch = 0; launch < (watches ? 2 : 24); launch++) spin<<<256, 256>>>(data, size, 4000000);
        if (!strcmp(part, "fault") && step > 2000) spin<<<1, 1>>>((float *)64, size, 1);
        if (!strcmp(part, "leave") && step > 400) return 0;
        cudaError_t error = cudaDeviceSynchronize();
        if (error) {
            printf("ERROR %s\n", cudaGetErrorString(error));
            return 3;
        }
        if (step == 0) printf("ready\n");
        if (watches && step % 2400 == 0) printf("step %ld\n", step);
        fflush(stdout);
    }
}
