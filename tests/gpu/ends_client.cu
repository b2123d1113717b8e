// A CUDA program without Python: `ends_client train|ignore|leave|watch|fault`. It always has work on the GPU.
#include <csignal>
#include <cstdio>
#include <cstring>

__global__ void spin(float *data, int count, long long cycles) {
    long long start = clock64();
    int at = (blockIdx.x * blockDim.x + threadIdx.x) % count;
    float value = data[at];
    while (clock64() - start < cycles) value = value * 1.0001f + 1e-6f;
    data[at] = value;
}

int main(int count, char **words) {
    const char *part = count > 1 ? words[1] : "train";
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
        fflush(stdout);
    }
}
