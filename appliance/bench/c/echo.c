/* Answers each message of SIZE bytes with the same bytes: the least that a server of requests and replies can do.
 *
 *     echo serve SIZE                              prints its port, serves one connection after another with epoll
 *     echo ask PORT SIZE COUNT IN_FLIGHT           prints the seconds that COUNT messages took
 *
 * "serve" handles what has arrived together, as a broker does, and sends it back with one call.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char UNPACED[] = "reno"; /* as an appliance does on one host */
enum { ROOM = 1 << 16 };
static char bytes[ROOM];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static size_t number(const char *text, long most) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < 1 || value > most) {
        fprintf(stderr, "echo: not a number from 1 to %ld: %s\n", most, text);
        exit(1);
    }
    return (size_t)value;
}

static void send_all(int sock, size_t count) {
    for (size_t sent = 0; sent < count;) {
        ssize_t some = send(sock, bytes, count - sent, MSG_NOSIGNAL);
        if (some < 0) fail("send");
        sent += (size_t)some;
    }
}

static void serve(size_t size) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct epoll_event event = {.events = EPOLLIN};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 16)) fail("listen");
    getsockname(listener, (void *)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int sock = accept(listener, NULL, NULL);
        size_t part = 0;
        if (sock < 0) fail("accept");
        setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(sock, IPPROTO_TCP, TCP_CONGESTION, UNPACED, sizeof UNPACED - 1);
        event.data.fd = sock;
        epoll_ctl(poll, EPOLL_CTL_ADD, sock, &event);
        for (;;) {
            if (epoll_wait(poll, &event, 1, -1) < 0) fail("epoll_wait");
            ssize_t got = recv(sock, bytes, ROOM, 0);
            if (got <= 0) break;
            part += (size_t)got;
            size_t whole = part - part % size;
            part -= whole;
            if (whole) send_all(sock, whole);
        }
        close(sock);
    }
}

static void ask(size_t port, size_t size, size_t count, size_t in_flight) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((unsigned short)port)};
    struct timespec start, end;
    int one = 1, sock = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(sock, (void *)&address, sizeof address)) fail("connect");
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    clock_gettime(CLOCK_MONOTONIC, &start);
    size_t sent = 0, received = 0;
    while (received < count * size) {
        while (sent < count && sent - received / size < in_flight) send_all(sock, size), sent++;
        ssize_t got = recv(sock, bytes, ROOM, 0);
        if (got <= 0) fail("recv");
        received += (size_t)got;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.6f\n", (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9);
}

int main(int argc, char **argv) {
    if (argc == 3) serve(number(argv[2], ROOM));
    if (argc != 6) return fputs("usage: echo serve SIZE | echo ask PORT SIZE COUNT IN_FLIGHT\n", stderr), 2;
    ask(number(argv[2], 65535), number(argv[3], ROOM), number(argv[4], 1000000000), number(argv[5], 1000));
    return 0;
}
