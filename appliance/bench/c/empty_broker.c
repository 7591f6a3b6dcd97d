/* A broker of Kafka's protocol that does nothing: what a client reaches with it, it reaches with no other.
 *
 *     empty_broker PORT DIRECTORY
 *
 * It acknowledges what is produced and forgets it.  It lets consumers fetch the first segment of any topic that an
 * appliance has in DIRECTORY: there the position of a message in the file is its offset, so nothing is looked up.  All
 * topics exist, with one partition.  It speaks one version of each request, and trusts its clients.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PRODUCE = 0, FETCH = 1, LIST_OFFSETS = 2, METADATA = 3, API_VERSIONS = 18 };
static const int16_t APIS[][3] = {{PRODUCE, 3, 3}, {FETCH, 4, 4}, {LIST_OFFSETS, 1, 1}, {METADATA, 4, 4},
                                  {API_VERSIONS, 0, 3}};
enum { CONNECTIONS_MAX = 64, FRAME_BYTES_MAX = 16 << 20, REPLY_BYTES_MAX = 1 << 16, NAME_BYTES_MAX = 249 };
static const char UNPACED[] = "reno";
enum { NOT_YET_US = 1000 }; /* a fetch at the end of the log is answered so late, without messages */

typedef struct {
    uint8_t *bytes;
    size_t size, room;
} Input;

static struct pollfd polled[CONNECTIONS_MAX + 1];
static Input inputs[CONNECTIONS_MAX + 1];
static int connections, file = -1, port;
static char file_of[NAME_BYTES_MAX + 1];
static const char *directory;
static const uint8_t *at, *end; /* what is left of a request */
static uint8_t reply[REPLY_BYTES_MAX], *out;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t take(int count) {
    uint64_t value = 0;
    if (end - at < count) fprintf(stderr, "empty_broker: a request ends too early\n"), exit(1);
    while (count--) value = value << 8 | *at++;
    return value;
}

static size_t take_name(char name[NAME_BYTES_MAX + 1]) {
    size_t size = take(2);
    if (size > NAME_BYTES_MAX || (size_t)(end - at) < size) size = 0;
    memcpy(name, at, size);
    name[size] = 0;
    at += size;
    return size;
}

static void put(uint64_t value, int count) {
    if (reply + sizeof reply - out < count) fprintf(stderr, "empty_broker: a reply is too long\n"), exit(1);
    while (count--) *out++ = (uint8_t)(value >> 8 * count);
}

static void put_text(const char *text) {
    put(strlen(text), 2);
    while (*text) put((uint8_t)*text++, 1);
}

static int may_go_on(int sock) { /* after a call that failed; if the client is gone the next recv says so */
    struct pollfd one = {.fd = sock, .events = POLLOUT};
    return errno == EAGAIN && poll(&one, 1, -1) == 1;
}

static void send_all(int sock, const uint8_t *bytes, size_t size, int flags) {
    while (size) {
        ssize_t sent = send(sock, bytes, size, MSG_NOSIGNAL | flags);
        if (sent < 0 && !may_go_on(sock)) return;
        if (sent > 0) bytes += sent, size -= (size_t)sent;
    }
}

static void send_reply(int sock, size_t more) { /* "more" bytes of a file follow */
    size_t size = (size_t)(out - reply);
    out = reply;
    put(size - 4 + more, 4);
    send_all(sock, reply, size, more ? MSG_MORE : 0);
}

static void api_versions(int version) { /* version 0 has no compact forms */
    put(0, 2);
    put(sizeof APIS / sizeof *APIS + (version >= 3), version >= 3 ? 1 : 4);
    for (size_t i = 0; i < sizeof APIS / sizeof *APIS; i++) {
        for (int j = 0; j < 3; j++) put((uint64_t)APIS[i][j], 2);
        if (version >= 3) put(0, 1);
    }
    if (version >= 1) put(0, 4);
    if (version >= 3) put(0, 1);
}

static void metadata(void) {
    char name[NAME_BYTES_MAX + 1];
    int32_t topics = (int32_t)take(4);
    put(0, 4); /* throttled */
    put(1, 4), put(0, 4), put_text("127.0.0.1"), put((uint64_t)port, 4), put(0xffff, 2);
    put_text("empty"), put(0, 4); /* cluster, controller */
    put(topics < 0 ? 0 : (uint64_t)topics, 4);
    for (; topics > 0; topics--) {
        take_name(name);
        put(0, 2), put_text(name), put(0, 1);
        put(1, 4), put(0, 2), put(0, 4), put(0, 4);       /* one partition; its leader */
        put(1, 4), put(0, 4), put(1, 4), put(0, 4);       /* replicas, in sync */
    }
}

static void each_partition(void (*answer_one)(void)) { /* the topics of a request, each named again with its partitions */
    char name[NAME_BYTES_MAX + 1];
    uint64_t topics = take(4);
    for (put(topics, 4); topics; topics--) {
        take_name(name);
        put_text(name);
        uint64_t partitions = take(4);
        for (put(partitions, 4); partitions; partitions--) {
            put(take(4), 4), put(0, 2);
            answer_one();
        }
    }
}

static void appended(void) {
    put(0, 8), put(UINT64_MAX, 8);
    at += take(4); /* the messages: not looked at */
}

static void begins(void) { /* every partition at 0, whatever time is asked for */
    put(UINT64_MAX, 8), put(0, 8);
    take(8);
}

static int produced(void) { /* whether the client wants a reply */
    char name[NAME_BYTES_MAX + 1];
    take_name(name); /* transaction: none */
    int acks = (int)take(2);
    take(4);
    each_partition(appended);
    put(0, 4);
    return acks != 0;
}

static size_t log_size(const char *topic) {
    struct stat status;
    if (strcmp(topic, file_of)) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s-0/%020d.log", directory, topic, 0);
        if (file >= 0) close(file);
        file = open(path, O_RDONLY | O_CLOEXEC);
        strcpy(file_of, file >= 0 ? topic : "");
    }
    return file >= 0 && !fstat(file, &status) ? (size_t)status.st_size : 0;
}

static void fetch(int sock) { /* of one partition */
    char name[NAME_BYTES_MAX + 1];
    take(4 + 4), take(4 + 4), take(1); /* replica, times and sizes, isolation */
    uint64_t topics = take(4), partitions = 0;
    off_t offset = 0;
    size_t most = 0, size = 0, end_offset = 0;
    if (topics) {
        take_name(name);
        partitions = take(4);
        take(4);
        offset = (off_t)take(8), most = take(4);
        end_offset = log_size(name);
        size = (size_t)offset < end_offset ? end_offset - (size_t)offset : 0;
        if (size > most) size = most;
    }
    put(0, 4), put(partitions != 0, 4);
    if (partitions) {
        put_text(name);
        put(1, 4), put(0, 4), put(0, 2), put(end_offset, 8), put(end_offset, 8), put(UINT32_MAX, 4), put(size, 4);
    }
    if (!size) usleep(NOT_YET_US);
    send_reply(sock, size);
    while (size) {
        ssize_t sent = sendfile(sock, file, &offset, size);
        if (sent < 0 && !may_go_on(sock)) return;
        if (sent > 0) size -= (size_t)sent;
    }
}

static void answer(int sock, const uint8_t *request, size_t size) {
    at = request, end = request + size;
    int api = (int)take(2), version = (int)take(2);
    uint64_t correlation = take(4);
    size_t client = take(2);
    at += client == 0xffff ? 0 : client;
    out = reply + 4;
    put(correlation, 4);
    switch (api) {
    case API_VERSIONS: api_versions(version); break;
    case METADATA: metadata(); break;
    case LIST_OFFSETS: take(4), each_partition(begins); break; /* the replica: a client */
    case FETCH: fetch(sock); return;
    case PRODUCE:
        if (!produced()) return;
        break;
    default: fprintf(stderr, "empty_broker: no API %d\n", api), exit(1);
    }
    send_reply(sock, 0);
}

static int serve(int sock, Input *input) { /* whether the connection goes on */
    ssize_t got = recv(sock, input->bytes + input->size, input->room - input->size, 0);
    if (got < 0 && errno == EAGAIN) return 1;
    if (got <= 0) return 0;
    input->size += (size_t)got;
    size_t done = 0;
    while (input->size - done >= 4) {
        uint32_t size;
        memcpy(&size, input->bytes + done, 4);
        size = ntohl(size);
        if (size > FRAME_BYTES_MAX) return 0;
        if (input->size - done < 4 + size) break;
        answer(sock, input->bytes + done + 4, size);
        done += 4 + size;
    }
    memmove(input->bytes, input->bytes + done, input->size -= done);
    return 1;
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (argc != 3 || (port = atoi(argv[1])) <= 0 || port > 65535)
        return fputs("usage: empty_broker PORT DIRECTORY\n", stderr), 2;
    directory = argv[2];
    address.sin_port = htons((uint16_t)port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 16)) fail("listen");
    polled[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    for (;;) {
        if (poll(polled, (nfds_t)connections + 1, -1) < 0) fail("poll");
        for (int i = connections; i > 0; i--) {
            if (!polled[i].revents || serve(polled[i].fd, &inputs[i])) continue;
            close(polled[i].fd);
            free(inputs[i].bytes);
            polled[i] = polled[connections], inputs[i] = inputs[connections--];
        }
        if (polled[0].revents) {
            int sock = accept4(listener, NULL, NULL, SOCK_NONBLOCK); /* sends as much at once as there is room for */
            if (sock < 0) fail("accept");
            setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            setsockopt(sock, IPPROTO_TCP, TCP_CONGESTION, UNPACED, sizeof UNPACED - 1); /* as an appliance does */
            if (connections == CONNECTIONS_MAX) close(sock);
            else {
                polled[++connections] = (struct pollfd){.fd = sock, .events = POLLIN};
                inputs[connections] = (Input){malloc(FRAME_BYTES_MAX + 4), 0, FRAME_BYTES_MAX + 4};
                if (!inputs[connections].bytes) fail("malloc");
            }
        }
    }
}
