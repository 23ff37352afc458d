# Tokenizers: regular expressions with Oniguruma, JSON with the headers of nlohmann. The ops that need them include this file.
include_guard(GLOBAL)

find_path(OPGATE_ONIGURUMA_INCLUDE oniguruma.h)
find_library(OPGATE_ONIGURUMA onig)
if(NOT OPGATE_ONIGURUMA_INCLUDE OR NOT OPGATE_ONIGURUMA)
  message(FATAL_ERROR "Oniguruma's headers are missing: install libonig-dev (Debian, Ubuntu)")
endif()

find_path(OPGATE_NLOHMANN_INCLUDE nlohmann/json.hpp)
if(NOT OPGATE_NLOHMANN_INCLUDE)
  message(FATAL_ERROR "nlohmann's JSON headers are missing: install nlohmann-json3-dev (Debian, Ubuntu)")
endif()

file(GLOB text_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
list(APPEND op_sources ${text_sources})
target_include_directories(opgate_op_dependencies SYSTEM INTERFACE ${OPGATE_ONIGURUMA_INCLUDE} ${OPGATE_NLOHMANN_INCLUDE})
target_link_libraries(opgate_op_dependencies INTERFACE ${OPGATE_ONIGURUMA})
