// Runs a program and prints its user and system time in microseconds, its peak memory in KiB and its wall time in
// microseconds. A Go program cannot measure this: the peak of a child begins at the size of who started it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
	struct timespec from, to;
	struct rusage use;
	int status;
	if (argc < 2) return 2;
	clock_gettime(CLOCK_MONOTONIC, &from);
	pid_t pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_WRONLY);
		dup2(null, 1);
		dup2(null, 2);
		execv(argv[1], argv + 1);
		_exit(127);
	}
	if (pid < 0 || wait4(pid, &status, 0, &use) != pid) return 2;
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("%ld %ld %ld %d\n", use.ru_utime.tv_sec * 1000000 + use.ru_utime.tv_usec + use.ru_stime.tv_sec * 1000000 + use.ru_stime.tv_usec,
	       use.ru_maxrss, (to.tv_sec - from.tv_sec) * 1000000 + (to.tv_nsec - from.tv_nsec) / 1000, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	return 0;
}
