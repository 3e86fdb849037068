// The least that could serve the library: it is called in this process, and its callback writes each token to the
// socket as a server-sent event. One client at a time, no queue, no checks, no template.
// Usage: runtime_loop PORT LIBRARY MODEL
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "abi_1_3.h"

namespace {

constexpr char kHead[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

void write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = write(fd, data, size);
    if (n <= 0) return;
    data += n;
    size -= static_cast<size_t>(n);
  }
}

int on_result(RKLLMResult* result, void* userdata, LLMCallState state) {
  if (state != RKLLM_RUN_NORMAL || result == nullptr || result->text == nullptr) return 0;
  char event[512];
  const int size = std::snprintf(event, sizeof event,
                                 "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"
                                 "\"model\":\"replay\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"finish_reason\":null}]}\n\n",
                                 result->text);
  write_all(*static_cast<int*>(userdata), event, static_cast<size_t>(size));
  return 0;
}

// The text between two marks, the first ones there are.
std::string between(const std::string& text, const char* begin, const char* end) {
  const size_t from = text.find(begin);
  if (from == std::string::npos) return "";
  const size_t start = from + std::strlen(begin);
  return text.substr(start, text.find(end, start) - start);
}

template <typename F>
F symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) std::abort();
  return reinterpret_cast<F>(found);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  void* library = dlopen(argv[2], RTLD_NOW);
  if (library == nullptr) return 1;
  RKLLMParam param = symbol<RKLLMParam (*)()>(library, "rkllm_createDefaultParam")();
  param.model_path = argv[3];
  param.max_context_len = 1000000;
  param.max_new_tokens = 999000;
  RKLLMCallback callbacks{};
  callbacks.result_callback = on_result;
  void* handle = nullptr;
  if (symbol<int (*)(void**, RKLLMParam*, RKLLMCallback*)>(library, "rkllm_init")(&handle, &param, &callbacks) != 0) return 1;
  symbol<int (*)(void*, const char*, const char*, const char*)>(library, "rkllm_set_chat_template")(handle, "", "", "");
  const auto run = symbol<int (*)(void*, RKLLMInput*, RKLLMInferParam*, void*)>(library, "rkllm_run");

  const int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(argv[1])));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(listener, 64) != 0) return 1;
  for (;;) {
    int client = accept(listener, nullptr, nullptr);
    if (client < 0) continue;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    std::string request;
    char buffer[65536];
    for (ssize_t n; (n = read(client, buffer, sizeof buffer)) > 0;) {
      request.append(buffer, static_cast<size_t>(n));
      const size_t head = request.find("\r\n\r\n");
      if (head == std::string::npos) continue;
      if (request.size() - head - 4 >= std::strtoul(between(request, "Content-Length: ", "\r\n").c_str(), nullptr, 10)) break;
    }
    write_all(client, kHead, sizeof kHead - 1);
    if (request.compare(0, 4, "POST") == 0) {
      const std::string prompt = between(request, "\"content\": \"", "\"");
      RKLLMInput input{};
      input.role = "user";
      input.input_type = RKLLM_INPUT_PROMPT;
      input.prompt_input = prompt.c_str();
      RKLLMInferParam infer{};
      infer.mode = RKLLM_INFER_GENERATE;
      infer.max_new_tokens = std::atoi(between(request, "\"max_tokens\": ", ",").c_str());
      run(handle, &input, &infer, &client);
      write_all(client, "data: [DONE]\n\n", 14);
    }
    shutdown(client, SHUT_WR);
    close(client);
  }
}
