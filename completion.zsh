#compdef holdfast
# What stands after "--" is another program's: holdfast must not be run for it.
_holdfast() {
    local -a given=("${(@)words[1,CURRENT-1]}")
    if (( ${given[(Ie)--]} )); then
        _normal
        return
    fi
    if [[ $words[CURRENT] == -* ]]; then
        given+=(-)
    elif [[ $CURRENT -ne 2 && $words[2] != completion ]]; then
        _files
        return
    fi
    compadd -- "${(@f)$("${given[@]}" --generate-bash-completion 2>/dev/null)}"
}
compdef _holdfast holdfast
