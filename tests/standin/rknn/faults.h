// What the environment has a call do: fail, hang, crash; and the log of calls. See README.md.
#pragma once
#include <string>

// Note a call; returns the code it is to return, 0 where it is to go on. May never return.
int called(const char* function, const std::string& details = "");

// A number in the environment, read at each call.
long setting(const char* name, long otherwise);
std::string setting(const char* name);
