/* A closed-loop HTTP/1.1 load driver that understands server-sent events: one thread, epoll, one JSON object as result.
 *
 *     drive --url http://127.0.0.1:9000/v1/responses --body-file body.json --connections 64 [--warm-up 0.5] [--seconds 2]
 *           [--requests N] [--rate R] [--ramp 0] [--timeout 60] [--stamped] [--header 'Authorization: Bearer sk-…']...
 *
 * Every connection sends its next request when the answer to the last one is complete. Samples are taken from requests
 * that end inside the window of `seconds` after the `warm-up`; with `--requests` there is no window and exactly N
 * requests are sent. Requests that have been started are always finished, so that `completed` and `failed` add up to
 * `started` and can be compared with what the server stored.
 *
 * With `--rate`, R requests per second become due at random times (a Poisson process), whatever the server does, and each
 * takes a free connection. When there is none, it waits; its times count from the moment at which it was due.
 *
 * Connections are opened evenly over the seconds of `--ramp`, so that paced streams are spread over their period.
 *
 * A stream is complete with `response.completed` (an event's name or type) or `[DONE]`; one that ends without, or
 * carries an error event, failed.
 * `--stamped` reads the "t<nanoseconds>" that the mock puts into each token and reports how old each one is on arrival.
 * All times in the result are milliseconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef int64_t Nanos;

enum { SECOND = 1000000000, HEAD_LIMIT = 16384, LINE_LIMIT = 8192, HEADER_LIMIT = 32, NEVER = 0 };

static Nanos now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (Nanos)t.tv_sec * SECOND + t.tv_nsec;
}

/* ---- samples ---------------------------------------------------------------------------------------------------- */

typedef struct {
  Nanos *values;
  size_t count, capacity;
} Samples;

static void add_sample(Samples *samples, Nanos value) {
  if (samples->count == samples->capacity) {
    samples->capacity = samples->capacity ? samples->capacity * 2 : 4096;
    samples->values = realloc(samples->values, samples->capacity * sizeof *samples->values);
    if (!samples->values) abort();
  }
  samples->values[samples->count++] = value;
}

static int compare(const void *left, const void *right) {
  Nanos a = *(const Nanos *)left, b = *(const Nanos *)right;
  return (a > b) - (a < b);
}

static double quantile(const Samples *sorted, double share) {
  return (double)sorted->values[(size_t)(share * (double)(sorted->count - 1))] / 1e6;
}

static void print_samples(const char *name, Samples *samples) {
  if (!samples->count) {
    printf(",\"%s\":null", name);
    return;
  }
  qsort(samples->values, samples->count, sizeof *samples->values, compare);
  printf(",\"%s\":{\"count\":%zu,\"p50\":%.3f,\"p95\":%.3f,\"p99\":%.3f,\"max\":%.3f}", name, samples->count,
         quantile(samples, .5), quantile(samples, .95), quantile(samples, .99), quantile(samples, 1));
}

/* ---- state ------------------------------------------------------------------------------------------------------ */

enum Outcome { SUCCEEDED, BAD_STATUS, BROKEN_CONNECTION, UNTERMINATED, ERROR_EVENT, TIMED_OUT, OUTCOMES };
static const char *const OUTCOME_NAMES[OUTCOMES] = {"",           "bad_status",  "broken_connection",
                                                    "unterminated", "error_event", "timed_out"};
enum Phase { IDLE, READING_HEAD, READING_BODY };
enum ChunkPart { SIZE, EXTENSION, CONTENT, CONTENT_END, TRAILER };

typedef struct {
  int descriptor, connected, keep_alive, is_free;
  enum Phase phase;
  Nanos opened, started, first_event, first_delta;
  size_t sent; /* bytes of the request */
  char head[HEAD_LIMIT];
  size_t head_length;
  int status, is_stream, is_chunked, ends_with_connection, terminated, has_error;
  enum ChunkPart part;
  int64_t left; /* of the body, or of the chunk */
  char line[LINE_LIMIT];
  size_t line_length; /* longer lines are cut */
  long events;
} Connection;

static struct {
  struct sockaddr_in address;
  char *request;
  size_t request_length;
  int connections, stamped;
  long requests; /* 0: as many as fit into the window */
  double rate;   /* 0: each connection sends its next request after the last one */
  Nanos warm_up, window, timeout, ramp;
} options = {.connections = 1, .warm_up = SECOND / 2, .window = 2LL * SECOND, .timeout = 60LL * SECOND};

static int poller, stopping, free_count;
static Connection **free_connections;
static Nanos next_due;
static long started, outcomes[OUTCOMES], measured, events;
static Nanos window_start, window_end, last_end;
static Samples total, first_event, first_delta, connecting, delta_age;
static char first_error[500];

static void remember_error(const char *bytes, size_t length) {
  if (first_error[0]) return;
  if (length >= sizeof first_error) length = sizeof first_error - 1;
  for (size_t i = 0; i < length; i++) { /* it is printed inside a JSON string */
    unsigned char c = (unsigned char)bytes[i];
    first_error[i] = (char)(c < 32 || c > 126 || c == '"' || c == '\\' ? '\'' : c);
  }
}

/* ---- a request's life ------------------------------------------------------------------------------------------- */

static void watch(Connection *connection, int operation, uint32_t interest) {
  struct epoll_event event = {.events = interest, .data.ptr = connection};
  epoll_ctl(poller, operation, connection->descriptor, &event);
}

static int push_request(Connection *connection) { /* -1 when the peer is gone */
  while (connection->sent < options.request_length) {
    ssize_t count = send(connection->descriptor, options.request + connection->sent,
                         options.request_length - connection->sent, MSG_NOSIGNAL);
    if (count > 0) {
      connection->sent += (size_t)count;
    } else if (count < 0 && errno == EAGAIN) {
      watch(connection, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
      return 0;
    } else if (count == 0 || errno != EINTR) {
      return -1;
    }
  }
  return 0;
}

static int start_request(Connection *connection, Nanos time) { /* -1 when the peer is gone */
  started++;
  connection->phase = READING_HEAD;
  connection->started = time;
  connection->first_event = connection->first_delta = NEVER;
  connection->sent = connection->head_length = connection->line_length = 0;
  connection->status = connection->terminated = connection->has_error = 0;
  connection->part = SIZE;
  connection->events = 0;
  connection->keep_alive = 1;
  return connection->connected ? push_request(connection) : 0;
}

static int begin_request(Connection *connection) { /* -1 when the peer is gone */
  connection->phase = IDLE;
  if (stopping || (options.requests && started >= options.requests)) return 0;
  if (!options.rate) return start_request(connection, now());
  if (!connection->is_free) free_connections[free_count++] = connection;
  connection->is_free = 1;
  return 0;
}

static void open_connection(Connection *connection) {
  int one = 1;
  if (connection->descriptor >= 0) close(connection->descriptor);
  connection->descriptor = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (connection->descriptor < 0) {
    perror("drive: cannot open a socket");
    exit(1);
  }
  setsockopt(connection->descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  connection->connected = 0;
  connection->opened = now();
  connect(connection->descriptor, (struct sockaddr *)&options.address, sizeof options.address);
  watch(connection, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
  begin_request(connection);
}

static void end_request(Connection *connection, enum Outcome outcome) {
  Nanos time = last_end = now();
  if (outcome == SUCCEEDED && connection->status != 200) outcome = BAD_STATUS;
  else if (outcome == SUCCEEDED && connection->has_error) outcome = ERROR_EVENT;
  else if (outcome == SUCCEEDED && connection->is_stream && !connection->terminated) outcome = UNTERMINATED;
  outcomes[outcome]++;
  if (outcome != SUCCEEDED) remember_error(OUTCOME_NAMES[outcome], strlen(OUTCOME_NAMES[outcome]));
  else if (options.requests || (time >= window_start && time <= window_end)) {
    measured++;
    events += connection->events;
    add_sample(&total, time - connection->started);
    if (connection->first_event) add_sample(&first_event, connection->first_event - connection->started);
    if (connection->first_delta) add_sample(&first_delta, connection->first_delta - connection->started);
  }
  connection->phase = IDLE;
}

static void fail(Connection *connection, enum Outcome outcome) {
  if (connection->phase != IDLE) end_request(connection, outcome);
  if (stopping) { /* nothing more is to be sent; an open connection would only wake the loop */
    close(connection->descriptor);
    connection->descriptor = -1;
  } else {
    open_connection(connection);
  }
}

/* ---- reading the answer ----------------------------------------------------------------------------------------- */

static int starts(const char *text, const char *prefix) { return !strncmp(text, prefix, strlen(prefix)); }

/* What follows the key in the line; NULL without the key or with an empty string as its value. */
static const char *value_after(const char *line, const char *key_and_quote) {
  const char *at = strstr(line, key_and_quote);
  if (!at) return NULL;
  at += strlen(key_and_quote);
  return *at == '"' ? NULL : at;
}

/* The text of a delta in a `data:` line of either API; NULL when the line carries none. */
static const char *delta_text(const char *line) {
  if (strstr(line, "\"type\":\"response.output_text.delta\"")) return value_after(line, "\"delta\":\"");
  return strstr(line, "\"chat.completion.chunk\"") ? value_after(line, "\"content\":\"") : NULL;
}

static void read_stamps(const char *text, Nanos time) { /* several when a server joined deltas */
  for (; *text && *text != '"'; text++)
    if (*text == 't') add_sample(&delta_age, time - (Nanos)strtoll(text + 1, NULL, 10));
}

static void read_line(Connection *connection, Nanos time) {
  const char *line = connection->line;
  if (starts(line, "data:")) {
    connection->events++;
    if (!connection->first_event) connection->first_event = time;
    const char *text = options.stamped || !connection->first_delta ? delta_text(line) : NULL;
    if (text && !connection->first_delta) connection->first_delta = time;
    if (text && options.stamped && time >= window_start && time <= window_end) read_stamps(text, time);
    if (starts(line, "data: [DONE]") || strstr(line, "\"type\":\"response.completed\"")) connection->terminated = 1;
    else if (starts(line, "data: {\"error\"")) connection->has_error = 1;
  } else if (starts(line, "event: response.completed")) {
    connection->terminated = 1;
  } else if (starts(line, "event: response.failed") || starts(line, "event: error")) {
    connection->has_error = 1;
  }
  if (connection->has_error) remember_error(line, strlen(line));
}

static void read_content(Connection *connection, const char *bytes, size_t length) {
  if (connection->status != 200) remember_error(bytes, length);
  if (!connection->is_stream) return;
  Nanos time = now();
  while (length) {
    const char *newline = memchr(bytes, '\n', length);
    size_t part = newline ? (size_t)(newline - bytes) : length, room = LINE_LIMIT - 1 - connection->line_length;
    memcpy(connection->line + connection->line_length, bytes, part < room ? part : room);
    connection->line_length += part < room ? part : room;
    if (!newline) return;
    connection->line[connection->line_length] = 0;
    if (connection->line_length) read_line(connection, time);
    connection->line_length = 0;
    bytes += part + 1;
    length -= part + 1;
  }
}

static int has_header(const Connection *connection, const char *text) {
  return strcasestr(connection->head, text) != NULL;
}

/* Take the head from the bytes; the number of bytes used, or -1 when it is none. The body follows once `phase` says so. */
static ssize_t read_head(Connection *connection, const char *bytes, size_t length) {
  size_t before = connection->head_length, room = HEAD_LIMIT - 1 - before;
  memcpy(connection->head + before, bytes, length < room ? length : room);
  connection->head_length += length < room ? length : room;
  connection->head[connection->head_length] = 0;
  char *end = strstr(connection->head, "\r\n\r\n");
  if (!end) return length < room ? (ssize_t)length : -1;
  ssize_t used = end + 4 - connection->head - (ssize_t)before;
  end[2] = 0;
  connection->status = atoi(connection->head + 9);
  connection->is_stream = has_header(connection, "\r\ncontent-type: text/event-stream");
  connection->is_chunked = has_header(connection, "\r\ntransfer-encoding: chunked");
  const char *content_length = strcasestr(connection->head, "\r\ncontent-length:");
  connection->left = content_length ? atoll(content_length + 17) : 0;
  connection->ends_with_connection = !connection->is_chunked && !content_length;
  connection->keep_alive = !connection->ends_with_connection && !has_header(connection, "\r\nconnection: close");
  if (connection->is_chunked) connection->left = 0;
  connection->phase = READING_BODY;
  return used;
}

static int hex(char c) { return c >= 'a' ? c - 'a' + 10 : c >= 'A' ? c - 'A' + 10 : c - '0'; }

static void end_chunk_line(Connection *connection) { connection->part = connection->left ? CONTENT : TRAILER; }

/* Take one step of chunked decoding; the number of bytes used. `phase` becomes IDLE behind the last chunk. */
static size_t read_chunk(Connection *connection, const char *bytes, size_t length, int *complete) {
  size_t part = length < (size_t)connection->left ? length : (size_t)connection->left;
  switch (connection->part) {
  case SIZE:
    if (*bytes == '\n') end_chunk_line(connection);
    else if (*bytes == ';') connection->part = EXTENSION;
    else if (*bytes != '\r') connection->left = connection->left * 16 + hex(*bytes);
    return 1;
  case EXTENSION:
    if (*bytes == '\n') end_chunk_line(connection);
    return 1;
  case CONTENT:
    read_content(connection, bytes, part);
    connection->left -= (int64_t)part;
    if (!connection->left) connection->part = CONTENT_END;
    return part;
  case CONTENT_END:
    if (*bytes == '\n') connection->part = SIZE;
    return 1;
  case TRAILER:
    *complete = *bytes == '\n';
    return 1;
  }
  return length;
}

/* Take what has arrived: 1 when the answer is complete, 0 when more must come, -1 when it is no HTTP. */
static int read_answer(Connection *connection, const char *bytes, size_t length) {
  int complete = 0;
  if (connection->phase == READING_HEAD) {
    ssize_t used = read_head(connection, bytes, length);
    if (used < 0) return -1;
    bytes += used;
    length -= (size_t)used;
    complete = connection->phase == READING_BODY && !connection->is_chunked && !connection->ends_with_connection &&
               !connection->left;
  }
  while (length && !complete) {
    size_t used = length;
    if (connection->is_chunked) {
      used = read_chunk(connection, bytes, length, &complete);
    } else {
      read_content(connection, bytes, length);
      connection->left -= (int64_t)length;
      complete = !connection->ends_with_connection && connection->left <= 0;
    }
    bytes += used;
    length -= used;
  }
  return complete;
}

/* ---- the loop --------------------------------------------------------------------------------------------------- */

static void on_writable(Connection *connection) {
  if (!connection->connected) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(connection->descriptor, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error) {
      usleep(1000); /* a refusing server must not turn this loop into a storm */
      fail(connection, BROKEN_CONNECTION);
      return;
    }
    connection->connected = 1;
    add_sample(&connecting, now() - connection->opened);
  }
  watch(connection, EPOLL_CTL_MOD, EPOLLIN);
  if (connection->phase != IDLE && push_request(connection) < 0) fail(connection, BROKEN_CONNECTION);
}

static void on_readable(Connection *connection) {
  static char block[1 << 18];
  ssize_t count = recv(connection->descriptor, block, sizeof block, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) {
    if (connection->phase == READING_BODY && connection->ends_with_connection) end_request(connection, SUCCEEDED);
    fail(connection, BROKEN_CONNECTION);
    return;
  }
  if (connection->phase == IDLE) return;
  int state = read_answer(connection, block, (size_t)count);
  if (state < 0) fail(connection, BROKEN_CONNECTION);
  if (state <= 0) return;
  end_request(connection, SUCCEEDED);
  if (!connection->keep_alive) fail(connection, SUCCEEDED); /* reopens; the request has already been counted */
  else if (begin_request(connection) < 0) fail(connection, BROKEN_CONNECTION);
}

/* Send the requests that have become due over free connections. */
static void send_due(void) {
  while (free_count && !stopping && next_due <= now()) {
    Connection *connection = free_connections[--free_count];
    connection->is_free = 0;
    if (start_request(connection, next_due) < 0) fail(connection, BROKEN_CONNECTION);
    next_due += (Nanos)(-log(1 - drand48()) / options.rate * SECOND);
  }
}

/* End what is overdue; the number of requests that are still under way. */
static int sweep(Connection *connections) {
  int active = 0;
  for (int i = 0; i < options.connections; i++) {
    if (connections[i].phase == IDLE) continue;
    if (now() - connections[i].started > options.timeout) fail(&connections[i], TIMED_OUT);
    active += connections[i].phase != IDLE;
  }
  return active;
}

static void drive(Connection *connections, Nanos begun) {
  struct epoll_event ready[512];
  Nanos last_sweep = now();
  int opened = 0;
  for (;;) {
    Nanos time = now();
    double share = options.ramp ? (double)(time - begun) / (double)options.ramp : 1;
    while (opened < options.connections && opened <= (int)(share * options.connections))
      open_connection(&connections[opened++]);
    stopping = options.requests ? started >= options.requests : time >= window_end;
    if (stopping || time - last_sweep > SECOND / 4) {
      last_sweep = time;
      if (!sweep(connections) && stopping) return;
    }
    if (options.rate) send_due();
    int count = epoll_wait(poller, ready, 512, opened < options.connections || options.rate ? 1 : 50);
    for (int i = 0; i < count; i++) {
      Connection *connection = ready[i].data.ptr;
      int descriptor = connection->descriptor;
      if (ready[i].events & EPOLLOUT) on_writable(connection);
      if (connection->descriptor != descriptor) continue; /* it was reopened; what is ready belongs to the old one */
      if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(connection);
    }
  }
}

/* ---- the edges -------------------------------------------------------------------------------------------------- */

static char *read_file(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  if (!file) {
    perror("drive: cannot read the body");
    exit(2);
  }
  fseek(file, 0, SEEK_END);
  *length = (size_t)ftell(file);
  rewind(file);
  char *bytes = malloc(*length + 1);
  if (!bytes || fread(bytes, 1, *length, file) != *length) exit(2);
  fclose(file);
  return bytes;
}

static void build_request(const char *url, const char *body_path, char **headers, int header_count) {
  char path[512] = "/";
  int port = 0;
  if (!url || sscanf(url, "http://127.0.0.1:%d%511s", &port, path) < 1) {
    fprintf(stderr, "drive: --url must be http://127.0.0.1:PORT/PATH\n");
    exit(2);
  }
  options.address.sin_family = AF_INET;
  options.address.sin_port = htons((uint16_t)port);
  options.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  size_t body_length = 0;
  char *body = read_file(body_path, &body_length);
  char *head = malloc(1 << 16);
  if (!head) abort();
  int length = snprintf(head, 1 << 15,
                        "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\nContent-Type: application/json\r\n"
                        "Content-Length: %zu\r\n",
                        path, port, body_length);
  for (int i = 0; i < header_count; i++) length += snprintf(head + length, 1 << 10, "%s\r\n", headers[i]);
  length += snprintf(head + length, 3, "\r\n");
  options.request_length = (size_t)length + body_length;
  options.request = malloc(options.request_length);
  if (!options.request) abort();
  memcpy(options.request, head, (size_t)length);
  memcpy(options.request + length, body, body_length);
  free(head);
  free(body);
}

static Nanos seconds(const char *text) { return (Nanos)(atof(text) * SECOND); }

static void read_arguments(int count, char **arguments) {
  const char *url = NULL, *body_path = "/dev/null";
  char *headers[HEADER_LIMIT];
  int header_count = 0;
  for (int i = 1; i < count; i++) {
    const char *name = arguments[i];
    if (!strcmp(name, "--stamped")) {
      options.stamped = 1;
      continue;
    }
    char *value = i + 1 < count ? arguments[++i] : "";
    if (!strcmp(name, "--url")) url = value;
    else if (!strcmp(name, "--body-file")) body_path = value;
    else if (!strcmp(name, "--connections")) options.connections = atoi(value);
    else if (!strcmp(name, "--requests")) options.requests = atol(value);
    else if (!strcmp(name, "--rate")) options.rate = atof(value);
    else if (!strcmp(name, "--warm-up")) options.warm_up = seconds(value);
    else if (!strcmp(name, "--seconds")) options.window = seconds(value);
    else if (!strcmp(name, "--timeout")) options.timeout = seconds(value);
    else if (!strcmp(name, "--ramp")) options.ramp = seconds(value);
    else if (!strcmp(name, "--header") && header_count < HEADER_LIMIT) headers[header_count++] = value;
    else {
      fprintf(stderr, "drive: unknown argument %s\n", name);
      exit(2);
    }
  }
  build_request(url, body_path, headers, header_count);
}

static void report(Nanos begun) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  double span = (double)(options.requests ? last_end - begun : options.window) / SECOND;
  double cpu = (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
               (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  printf("{\"connections\":%d,\"started\":%ld,\"completed\":%ld,\"failed\":%ld,\"measured\":%ld", options.connections,
         started, outcomes[SUCCEEDED], started - outcomes[SUCCEEDED], measured);
  printf(",\"seconds\":%.3f,\"per_second\":%.2f,\"events_per_request\":%.2f,\"driver_cpu_seconds\":%.3f", span,
         span > 0 ? (double)measured / span : 0, measured ? (double)events / (double)measured : 0, cpu);
  print_samples("total_ms", &total);
  print_samples("first_event_ms", &first_event);
  print_samples("first_delta_ms", &first_delta);
  print_samples("connect_ms", &connecting);
  print_samples("delta_age_ms", &delta_age);
  printf(",\"failures\":{");
  for (int i = 1; i < OUTCOMES; i++) printf("%s\"%s\":%ld", i > 1 ? "," : "", OUTCOME_NAMES[i], outcomes[i]);
  printf("},\"first_error\":\"%s\"}\n", first_error);
}

int main(int count, char **arguments) {
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  read_arguments(count, arguments);
  poller = epoll_create1(0);
  Connection *connections = calloc((size_t)options.connections, sizeof *connections);
  free_connections = calloc((size_t)options.connections, sizeof *free_connections);
  if (!connections || !free_connections) abort();
  Nanos begun = next_due = now();
  window_start = options.requests ? 0 : begun + options.warm_up;
  window_end = options.requests ? INT64_MAX : window_start + options.window;
  for (int i = 0; i < options.connections; i++) connections[i].descriptor = -1;
  drive(connections, begun);
  report(begun);
  return 0;
}
