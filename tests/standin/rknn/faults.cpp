#include "faults.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>

namespace {
std::mutex guard;
auto& counts = *new std::map<std::string, int>();  // never destroyed, as in api.cpp
auto& counted_for = *new std::string();             // counts begin anew when the faults are changed
}  // namespace

std::string setting(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

long setting(const char* name, long otherwise) {
    std::string value = setting(name);
    return value.empty() ? otherwise : std::atol(value.c_str());
}

int called(const char* function, const std::string& details) {
    std::lock_guard<std::mutex> held(guard);
    std::string faults = setting("RKNN_STANDIN_FAULTS");
    if (faults != counted_for) {
        counts.clear();
        counted_for = faults;
    }
    int count = ++counts[function], result = 0;
    std::istringstream items(faults);
    for (std::string item; std::getline(items, item, ',');) {  // FUNCTION[:NTH]=CODE|crash|hang
        size_t equal = item.find('=');
        if (equal == std::string::npos) continue;
        std::string name = item.substr(0, equal), what = item.substr(equal + 1);
        size_t colon = name.find(':');
        if (colon != std::string::npos) {
            if (std::atoi(name.c_str() + colon + 1) != count) continue;
            name.resize(colon);
        }
        if (name != function) continue;
        if (what == "crash") std::abort();
        if (what == "hang")
            for (;;) pause();
        result = std::atoi(what.c_str());
    }
    std::string log = setting("RKNN_STANDIN_LOG");
    if (!log.empty()) {
        if (FILE* file = std::fopen(log.c_str(), "a")) {
            std::fprintf(file, "{\"pid\": %d, \"call\": \"%s\"%s%s, \"returns\": %d}\n", getpid(), function,
                         details.empty() ? "" : ", ", details.c_str(), result);
            std::fclose(file);
        }
    }
    return result;
}
