// A process that the command leaves behind: deaf to SIGTERM, it goes on until a file is there. With two arguments only its second thread goes
// on. With three, it runs the program that these name, has what that leaves behind as its children, and never waits for those.

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void *until_exists(void *file) {
    while (access(file, F_OK) != 0) {
        usleep(20000);
    }
    exit(0);
}

static int parent_of(char **program) {
    int status = 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    pid_t child = fork();
    if (child == 0) {
        execv(program[0], program);
        _exit(127);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int count, char **arguments) {
    pthread_t thread;
    if (count > 3) {
        return parent_of(arguments + 1);
    }
    signal(SIGTERM, SIG_IGN);
    if (count == 2) {
        until_exists(arguments[1]);
    }
    pthread_create(&thread, NULL, until_exists, arguments[1]);
    pthread_exit(NULL);
}
