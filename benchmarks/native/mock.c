/* An upstream for chat completions and Responses that costs almost nothing: one thread, epoll, bytes built once.
 *
 *     mock --port 9100
 *
 * Routes: GET /v1/models, POST /v1/chat/completions, POST /v1/responses, GET /health. It listens on 127.0.0.1 only and ends with its parent.
 * The model name of each request says how to answer, in any order behind the first dash:
 *
 *     -tN    N tokens (64)          -dX    X milliseconds between tokens (0)
 *     -fX    X milliseconds to the first token (0)
 *     -eNNN  HTTP status NNN and an error body
 *     -ts    every token is "t<nanoseconds> ", CLOCK_MONOTONIC as it is handed to the socket
 *     -call  chat completions: call the function "lookup", unless the request carries the output of a tool
 *
 * Without delays a whole stream leaves in one write (a burst: it measures CPU); with them every token is a write of its
 * own (paced: it measures what one event costs and how long it is kept). Bodies need a Content-Length.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
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

enum { MILLISECOND = 1000000, SECOND = 1000000000, DEFAULT_TOKENS = 64, WORD_COUNT = 16, PROMPT_TOKENS = 16 };

static Nanos now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (Nanos)t.tv_sec * SECOND + t.tv_nsec;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

typedef struct {
  char *bytes;
  size_t length, capacity;
} Buffer;

static void append(Buffer *buffer, const void *bytes, size_t length) {
  if (buffer->length + length + 1 > buffer->capacity) {
    buffer->capacity = (buffer->length + length + 1) * 2;
    buffer->bytes = realloc(buffer->bytes, buffer->capacity);
    if (!buffer->bytes) abort();
  }
  memcpy(buffer->bytes + buffer->length, bytes, length);
  buffer->length += length;
  buffer->bytes[buffer->length] = 0; /* so that strstr and sscanf may read it */
}

static void append_text(Buffer *buffer, const char *text) { append(buffer, text, strlen(text)); }

static void append_buffer(Buffer *buffer, const Buffer *more) { append(buffer, more->bytes, more->length); }

/* ---- what a request asks for ------------------------------------------------------------------------------------ */

typedef struct {
  int tokens, status, stream, usage, stamped, calls, responses;
  Nanos between, first;
} Plan;

/* The text between the quotes that follow `"key":`; NULL when the key is absent or its value is no string. */
static const char *string_value(const char *body, const char *quoted_key, size_t *length) {
  const char *at = strstr(body, quoted_key);
  if (!at) return NULL;
  at += strlen(quoted_key);
  while (*at == ' ' || *at == ':') at++;
  if (*at != '"') return NULL;
  const char *end = strchr(++at, '"');
  if (!end) return NULL;
  *length = (size_t)(end - at);
  return at;
}

static int is_true(const char *body, const char *quoted_key) {
  const char *at = strstr(body, quoted_key);
  if (!at) return 0;
  at += strlen(quoted_key);
  while (*at == ' ' || *at == ':') at++;
  return *at == 't';
}

static void read_option(Plan *plan, const char *option) {
  if (!strncmp(option, "ts", 2)) plan->stamped = 1;
  else if (!strncmp(option, "call", 4)) plan->calls = 1;
  else if (option[1] < '0' || option[1] > '9') return;
  else if (*option == 't') plan->tokens = atoi(option + 1);
  else if (*option == 'd') plan->between = (Nanos)(atof(option + 1) * MILLISECOND);
  else if (*option == 'f') plan->first = (Nanos)(atof(option + 1) * MILLISECOND);
  else if (*option == 'e') plan->status = atoi(option + 1);
}

static Plan read_plan(const char *body) {
  Plan plan = {.tokens = DEFAULT_TOKENS, .status = 200};
  size_t length = 0;
  const char *model = string_value(body, "\"model\"", &length);
  for (size_t i = 0; model && i + 2 < length; i++)
    if (model[i] == '-') read_option(&plan, model + i + 1);
  plan.stream = is_true(body, "\"stream\"");
  plan.usage = is_true(body, "\"include_usage\"");
  if (plan.calls) plan.calls = !strstr(body, "\"role\":\"tool\"") && !strstr(body, "\"role\": \"tool\"");
  if (plan.calls) plan.tokens = 1;
  return plan;
}

/* ---- answers ---------------------------------------------------------------------------------------------------- */

#define PLACEHOLDER "0123456789abcdef" /* where the completion's own id goes */
#define STREAM_HEAD                                                                                                    \
  "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"                   \
  "Transfer-Encoding: chunked\r\n\r\n"
#define CHUNK_OPENING                                                                                                  \
  "data: {\"id\":\"chatcmpl-" PLACEHOLDER "\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"            \
  "\"model\":\"mock\",\"choices\":["
#define MODEL "{\"id\":\"mock\",\"object\":\"model\",\"created\":1760000000,\"owned_by\":\"mock\"}"

static const char *const WORDS[WORD_COUNT] = {" the", " model", " answers", " with", " plain", " tokens", " so", " that",
                                              " a", " server", " can", " be", " measured", " by", " its", " work"};

static Buffer opening_piece, word_pieces[WORD_COUNT], stop_piece, closing_piece;
static Buffer whole_streams[2][2]; /* of the default length: of chat completions and Responses, without and with usage */
static uint64_t last_id;

static void append_chunked(Buffer *out, const char *text) {
  char size[24];
  snprintf(size, sizeof size, "%zx\r\n", strlen(text));
  append_text(out, size);
  append_text(out, text);
  append_text(out, "\r\n");
}

static void append_piece(Buffer *out, const char *delta, const char *finish_reason) {
  char text[512];
  snprintf(text, sizeof text, CHUNK_OPENING "{\"index\":0,\"delta\":%s,\"logprobs\":null,\"finish_reason\":%s}]}\n\n", delta,
           finish_reason);
  append_chunked(out, text);
}

static void append_usage_piece(Buffer *out, int tokens) {
  char text[512];
  snprintf(text, sizeof text,
           CHUNK_OPENING "],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n",
           PROMPT_TOKENS, tokens, PROMPT_TOKENS + tokens);
  append_chunked(out, text);
}

/* ---- events and objects of the Responses API -------------------------------------------------------------------- */

#define MESSAGE_HEAD "{\"id\":\"msg_" PLACEHOLDER "\",\"type\":\"message\",\"role\":\"assistant\",\"status\":"
#define PART_HEAD "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":\""
#define PLACE "\"output_index\":0,\"item_id\":\"msg_" PLACEHOLDER "\",\"content_index\":0"

static void append_words(Buffer *out, const Plan *plan) {
  for (int i = 0; i < plan->tokens; i++) append_text(out, WORDS[i % WORD_COUNT]);
}

static void append_message(Buffer *out, const Plan *plan) {
  append_text(out, MESSAGE_HEAD "\"completed\",\"content\":[" PART_HEAD);
  append_words(out, plan);
  append_text(out, "\"}]}");
}

static void append_response(Buffer *out, const Plan *plan, int complete) {
  char usage[320];
  append_text(out, "{\"id\":\"resp_" PLACEHOLDER "\",\"object\":\"response\",\"created_at\":1760000000,\"error\":null,"
                   "\"incomplete_details\":null,\"instructions\":null,\"max_output_tokens\":null,\"metadata\":{},"
                   "\"model\":\"mock\",\"parallel_tool_calls\":true,\"previous_response_id\":null,"
                   "\"reasoning\":{\"effort\":null,\"summary\":null},\"service_tier\":\"default\",\"store\":false,"
                   "\"temperature\":1.0,\"text\":{\"format\":{\"type\":\"text\"}},\"tool_choice\":\"auto\",\"tools\":[],"
                   "\"top_p\":1.0,\"truncation\":\"disabled\",\"background\":false,\"status\":\"");
  append_text(out, complete ? "completed\",\"output\":[" : "in_progress\",\"output\":[],\"usage\":null}");
  if (!complete) return;
  append_message(out, plan);
  snprintf(usage, sizeof usage,
           "],\"usage\":{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":0,\"cache_write_tokens\":0},\"output_tokens\":%d,"
           "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%d}}",
           PROMPT_TOKENS, plan->tokens, PROMPT_TOKENS + plan->tokens);
  append_text(out, usage);
}

/* An event as an HTTP chunk; `fields` follow its type and number, and end the object. */
static void append_event(Buffer *out, const char *type, int number, const char *fields) {
  Buffer text = {0};
  char head[160];
  snprintf(head, sizeof head, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d,", type, type, number);
  append_text(&text, head);
  append_text(&text, fields);
  append_text(&text, "}\n\n");
  append_chunked(out, text.bytes);
  free(text.bytes);
}

static void append_response_event(Buffer *out, const Plan *plan, const char *type, int number, int complete) {
  Buffer fields = {0};
  append_text(&fields, "\"response\":");
  append_response(&fields, plan, complete);
  append_event(out, type, number, fields.bytes);
  free(fields.bytes);
}

static void append_response_opening(Buffer *out, const Plan *plan) {
  append_response_event(out, plan, "response.created", 0, 0);
  append_response_event(out, plan, "response.in_progress", 1, 0);
  append_event(out, "response.output_item.added", 2,
               "\"output_index\":0,\"item\":" MESSAGE_HEAD "\"in_progress\",\"content\":[]}");
  append_event(out, "response.content_part.added", 3, PLACE ",\"part\":" PART_HEAD "\"}");
}

static void append_response_ending(Buffer *out, const Plan *plan) {
  Buffer fields = {0};
  append_text(&fields, PLACE ",\"logprobs\":[],\"text\":\"");
  append_words(&fields, plan);
  append_text(&fields, "\"");
  append_event(out, "response.output_text.done", plan->tokens + 4, fields.bytes);
  fields.length = 0;
  append_text(&fields, PLACE ",\"part\":" PART_HEAD);
  append_words(&fields, plan);
  append_text(&fields, "\"}");
  append_event(out, "response.content_part.done", plan->tokens + 5, fields.bytes);
  fields.length = 0;
  append_text(&fields, "\"output_index\":0,\"item\":");
  append_message(&fields, plan);
  append_event(out, "response.output_item.done", plan->tokens + 6, fields.bytes);
  free(fields.bytes);
  append_response_event(out, plan, "response.completed", plan->tokens + 7, 1);
  append_text(out, "0\r\n\r\n");
}

/* ---- streams of either API -------------------------------------------------------------------------------------- */

#define CALL                                                                                                           \
  "[{\"index\":0,\"id\":\"call_" PLACEHOLDER "\",\"type\":\"function\",\"function\":{\"name\":\"lookup\","                  \
  "\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\"}}]"

static void append_opening(Buffer *out, const Plan *plan) {
  if (plan->responses) append_response_opening(out, plan);
  else append_buffer(out, &opening_piece);
}

static void append_token(Buffer *out, const Plan *plan, int index) {
  char token[64], delta[256];
  if (plan->calls) {
    append_piece(out, "{\"tool_calls\":" CALL "}", "null");
    return;
  }
  if (!plan->stamped && !plan->responses) {
    append_buffer(out, &word_pieces[index % WORD_COUNT]);
    return;
  }
  if (plan->stamped) snprintf(token, sizeof token, "t%lld ", (long long)now());
  else snprintf(token, sizeof token, "%s", WORDS[index % WORD_COUNT]);
  if (plan->responses) {
    snprintf(delta, sizeof delta, PLACE ",\"logprobs\":[],\"delta\":\"%s\"", token);
    append_event(out, "response.output_text.delta", index + 4, delta);
  } else {
    snprintf(delta, sizeof delta, "{\"content\":\"%s\"}", token);
    append_piece(out, delta, "null");
  }
}

static void append_ending(Buffer *out, const Plan *plan) {
  if (plan->responses) {
    append_response_ending(out, plan);
    return;
  }
  if (plan->calls) append_piece(out, "{}", "\"tool_calls\"");
  else append_buffer(out, &stop_piece);
  if (plan->usage) append_usage_piece(out, plan->tokens);
  append_buffer(out, &closing_piece);
}

static void build_pieces(void) {
  append_piece(&opening_piece, "{\"role\":\"assistant\",\"content\":\"\"}", "null");
  for (int i = 0; i < WORD_COUNT; i++) {
    char delta[64];
    snprintf(delta, sizeof delta, "{\"content\":\"%s\"}", WORDS[i]);
    append_piece(&word_pieces[i], delta, "null");
  }
  append_piece(&stop_piece, "{}", "\"stop\"");
  append_chunked(&closing_piece, "data: [DONE]\n\n");
  append_text(&closing_piece, "0\r\n\r\n");
  for (int kind = 0; kind < 4; kind++) {
    Plan plan = {.tokens = DEFAULT_TOKENS, .responses = kind / 2, .usage = kind % 2};
    Buffer *whole = &whole_streams[plan.responses][plan.usage];
    append_text(whole, STREAM_HEAD);
    append_opening(whole, &plan);
    for (int i = 0; i < plan.tokens; i++) append_token(whole, &plan, i);
    append_ending(whole, &plan);
  }
}

/* Give every placeholder behind `from` the 16 hexadecimal digits of this completion. */
static void put_id(Buffer *out, size_t from, uint64_t id) {
  char digits[17];
  snprintf(digits, sizeof digits, "%016llx", (unsigned long long)id);
  char *at = out->bytes + from, *end = out->bytes + out->length;
  while ((at = memmem(at, (size_t)(end - at), PLACEHOLDER, 16))) {
    memcpy(at, digits, 16);
    at += 16;
  }
}

static void append_json_answer(Buffer *out, const char *status, const Buffer *body) {
  char head[128];
  snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", status,
           body->length);
  append_text(out, head);
  append_buffer(out, body);
}

static void append_short_answer(Buffer *out, const char *status, const char *json) {
  Buffer body = {0};
  append_text(&body, json);
  append_json_answer(out, status, &body);
  free(body.bytes);
}

static void append_completion(Buffer *out, const Plan *plan) {
  Buffer body = {0};
  char usage[256];
  if (plan->responses) {
    append_response(&body, plan, 1);
    append_json_answer(out, "200 OK", &body);
    free(body.bytes);
    return;
  }
  append_text(&body, "{\"id\":\"chatcmpl-" PLACEHOLDER "\",\"object\":\"chat.completion\",\"created\":1760000000,"
                     "\"model\":\"mock\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
  if (plan->calls) {
    append_text(&body, "null,\"tool_calls\":" CALL);
  } else {
    append_text(&body, "\"");
    append_words(&body, plan);
    append_text(&body, "\"");
  }
  snprintf(usage, sizeof usage,
           ",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"%s\"}],"
           "\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d}}",
           plan->calls ? "tool_calls" : "stop", PROMPT_TOKENS, plan->tokens, PROMPT_TOKENS + plan->tokens);
  append_text(&body, usage);
  append_json_answer(out, "200 OK", &body);
  free(body.bytes);
}

/* ---- connections and their timers ------------------------------------------------------------------------------- */

typedef struct {
  int descriptor, answering, waits_for_room;
  Buffer in, out;
  size_t written; /* of `out` */
  Plan plan;
  int sent; /* tokens */
  uint64_t id;
  Nanos due;
  int slot; /* in the timer heap, -1 for none */
} Connection;

static int poller;
static Connection **timers;
static int timer_count, timer_capacity;

static void place(Connection *connection, int slot) {
  timers[slot] = connection;
  connection->slot = slot;
}

static void sift_up(int slot) {
  Connection *moving = timers[slot];
  for (; slot && timers[(slot - 1) / 2]->due > moving->due; slot = (slot - 1) / 2) place(timers[(slot - 1) / 2], slot);
  place(moving, slot);
}

static void sift_down(int slot) {
  Connection *moving = timers[slot];
  for (;;) {
    int child = 2 * slot + 1;
    if (child + 1 < timer_count && timers[child + 1]->due < timers[child]->due) child++;
    if (child >= timer_count || timers[child]->due >= moving->due) break;
    place(timers[child], slot);
    slot = child;
  }
  place(moving, slot);
}

static void set_timer(Connection *connection, Nanos due) {
  if (timer_count == timer_capacity) {
    timer_capacity = timer_capacity ? timer_capacity * 2 : 1024;
    timers = realloc(timers, (size_t)timer_capacity * sizeof *timers);
    if (!timers) abort();
  }
  connection->due = due;
  place(connection, timer_count++);
  sift_up(connection->slot);
}

static void clear_timer(Connection *connection) {
  int slot = connection->slot;
  if (slot < 0) return;
  connection->slot = -1;
  Connection *last = timers[--timer_count];
  if (last == connection) return;
  place(last, slot);
  sift_up(slot);
  sift_down(last->slot);
}

static void watch(Connection *connection, int operation, uint32_t events) {
  struct epoll_event event = {.events = events, .data.ptr = connection};
  epoll_ctl(poller, operation, connection->descriptor, &event);
}

static void drop(Connection *connection) {
  clear_timer(connection);
  close(connection->descriptor);
  free(connection->in.bytes);
  free(connection->out.bytes);
  free(connection);
}

static int flush(Connection *connection) { /* 0, or -1 when the peer is gone */
  Buffer *out = &connection->out;
  while (connection->written < out->length) {
    ssize_t count =
        send(connection->descriptor, out->bytes + connection->written, out->length - connection->written, MSG_NOSIGNAL);
    if (count > 0) {
      connection->written += (size_t)count;
    } else if (errno == EAGAIN) {
      if (!connection->waits_for_room) watch(connection, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
      connection->waits_for_room = 1;
      return 0;
    } else if (errno != EINTR) {
      return -1;
    }
  }
  out->length = connection->written = 0;
  if (connection->waits_for_room) watch(connection, EPOLL_CTL_MOD, EPOLLIN);
  connection->waits_for_room = 0;
  return 0;
}

/* ---- answering -------------------------------------------------------------------------------------------------- */

static void tick(Connection *connection) { /* the timer has fired: the next token, or the whole of a JSON answer */
  const Plan *plan = &connection->plan;
  size_t from = connection->out.length;
  if (!plan->stream) {
    append_completion(&connection->out, plan);
    connection->answering = 0;
  } else {
    if (!connection->sent) append_opening(&connection->out, plan);
    do append_token(&connection->out, plan, connection->sent++);
    while (!plan->between && connection->sent < plan->tokens);
    connection->answering = connection->sent < plan->tokens;
    if (!connection->answering) append_ending(&connection->out, plan);
  }
  put_id(&connection->out, from, connection->id);
  if (connection->answering) set_timer(connection, connection->due + plan->between);
}

static void refuse(Connection *connection, int status) {
  char line[32];
  snprintf(line, sizeof line, "%d Mock", status);
  append_short_answer(&connection->out, line,
                      "{\"error\":{\"message\":\"as the model name asked\",\"type\":\"mock\",\"code\":\"mock\"}}");
}

static void complete(Connection *connection, const char *body, int responses) {
  Plan plan = read_plan(body);
  plan.responses = responses;
  connection->plan = plan;
  connection->id = ++last_id;
  connection->sent = 0;
  if (plan.status != 200) {
    refuse(connection, plan.status);
  } else if (plan.stream && !plan.first && !plan.between && !plan.stamped && plan.tokens == DEFAULT_TOKENS) {
    size_t from = connection->out.length;
    append_buffer(&connection->out, &whole_streams[responses][plan.usage]);
    put_id(&connection->out, from, connection->id);
  } else {
    Nanos delay = plan.first + (plan.stream ? 0 : plan.between * plan.tokens);
    if (plan.stream) append_text(&connection->out, STREAM_HEAD);
    connection->answering = 1;
    connection->due = now();
    if (delay) set_timer(connection, connection->due + delay);
    else tick(connection);
  }
}

static void answer(Connection *connection, const char *method, const char *path, const char *body) {
  int is_post = !strcmp(method, "POST");
  if (is_post && !strcmp(path, "/v1/chat/completions")) complete(connection, body, 0);
  else if (is_post && !strcmp(path, "/v1/responses")) complete(connection, body, 1);
  else if (!is_post && !strcmp(path, "/v1/models"))
    append_short_answer(&connection->out, "200 OK", "{\"object\":\"list\",\"data\":[" MODEL "]}");
  else if (!is_post && !strcmp(path, "/health")) append_short_answer(&connection->out, "200 OK", "{}");
  else append_short_answer(&connection->out, "404 Not Found", "{\"error\":{\"message\":\"no such route\"}}");
}

/* Answer every complete request in `in`, one after the other; -1 when the connection is of no more use. */
static int serve(Connection *connection) {
  Buffer *in = &connection->in;
  while (!connection->answering && in->length) {
    char *end = strstr(in->bytes, "\r\n\r\n");
    if (!end) return 0;
    size_t head = (size_t)(end - in->bytes) + 4;
    *end = 0; /* ends the search for headers; the request is taken out below */
    const char *length = strcasestr(in->bytes, "\r\ncontent-length:");
    size_t total = head + (length ? strtoul(length + 17, NULL, 10) : 0);
    int chunked = strcasestr(in->bytes, "\r\ntransfer-encoding:") != NULL;
    *end = '\r';
    if (chunked) return -1;
    if (in->length < total) return 0;
    char method[8], path[256], next = in->bytes[total];
    if (sscanf(in->bytes, "%7s %255s", method, path) != 2) return -1;
    in->bytes[total] = 0; /* the body ends here for strstr, whatever the client has pipelined behind it */
    answer(connection, method, path, in->bytes + head);
    in->bytes[total] = next;
    memmove(in->bytes, in->bytes + total, in->length - total + 1);
    in->length -= total;
    if (flush(connection) < 0) return -1;
  }
  return 0;
}

static int receive(Connection *connection) { /* -1 when the peer is gone */
  static char block[1 << 16];
  for (;;) {
    ssize_t count = recv(connection->descriptor, block, sizeof block, 0);
    if (count > 0) append(&connection->in, block, (size_t)count);
    else if (count < 0 && errno == EAGAIN) return 0;
    else if (count == 0 || errno != EINTR) return -1;
    if (count > 0 && (size_t)count < sizeof block) return 0;
  }
}

/* ---- the server ------------------------------------------------------------------------------------------------- */

static void accept_all(int listener) {
  int descriptor, one = 1;
  while ((descriptor = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    Connection *connection = calloc(1, sizeof *connection);
    if (!connection) abort();
    connection->descriptor = descriptor;
    connection->slot = -1;
    watch(connection, EPOLL_CTL_ADD, EPOLLIN);
  }
}

static void handle(Connection *connection, uint32_t events) {
  int gone = 0;
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) gone = receive(connection) < 0 || serve(connection) < 0;
  if (!gone && (events & EPOLLOUT)) gone = flush(connection) < 0;
  if (gone) drop(connection);
}

static void fire_timers(void) {
  Nanos time = now();
  while (timer_count && timers[0]->due <= time) {
    Connection *connection = timers[0];
    clear_timer(connection);
    tick(connection);
    if (flush(connection) < 0 || serve(connection) < 0) drop(connection);
  }
}

static int listen_on(int port) {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) {
    perror("mock: cannot listen");
    exit(1);
  }
  return listener;
}

static void prepare_process(void) {
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
}

int main(int count, char **arguments) {
  if (count != 3 || strcmp(arguments[1], "--port")) {
    fprintf(stderr, "usage: mock --port PORT\n");
    return 2;
  }
  prepare_process();
  build_pieces();
  last_id = ((uint64_t)time(NULL) << 20) | 0xabcULL << 52; /* never the placeholder, never the id of an earlier run */
  int listener = listen_on(atoi(arguments[2]));
  poller = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[512];
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
  for (;;) {
    Nanos wait = timer_count ? timers[0]->due - now() : 0;
    if (wait < 0) wait = 0;
    struct timespec timeout = {.tv_sec = wait / SECOND, .tv_nsec = wait % SECOND};
    int ready = epoll_pwait2(poller, events, 512, timer_count ? &timeout : NULL, NULL);
    for (int i = 0; i < ready; i++) {
      if (events[i].data.ptr) handle(events[i].data.ptr, events[i].events);
      else accept_all(listener);
    }
    fire_timers();
  }
}
