// Prints the four words of csrc/common/philox.h for a counter and a key given in hexadecimal.

#include <cstdio>
#include <cstdlib>

#include "common/philox.h"

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  uint32_t in[6];
  for (int i = 0; i < 6; ++i) in[i] = static_cast<uint32_t>(std::strtoul(argv[i + 1], nullptr, 16));
  const rdk::PhiloxWords words = rdk::philox4x32_10({{in[0], in[1], in[2], in[3]}}, in[4], in[5]);
  for (uint32_t word : words.word) std::printf("%08x ", word);
  return 0;
}
