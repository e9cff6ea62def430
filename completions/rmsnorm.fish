# Completion of the rmsnorm command for fish. Options come out of the command's own help, so they are never out of date.
# SPDX-License-Identifier: Apache-2.0
set -l commands run check bench diff bisect info help

function __rmsnorm_options
    set -l words (commandline -opc)
    rmsnorm $words[2] --help 2>/dev/null | string match -ra -- '--[a-z0-9][a-z0-9-]*' | sort -u
end

function __rmsnorm_names -a part
    set -l text (rmsnorm info --json 2>/dev/null)
    if test "$part" = presets
        set text (string replace -r '.*"presets"' '' -- $text)
    else
        set text (string replace -r '"presets".*' '' -- $text)
    end
    string match -ra '"name":"[^"]*"' -- $text | string replace -r '"name":"(.*)"' '$1'
end

complete -c rmsnorm -n "not __fish_seen_subcommand_from $commands" -f -a run -d 'normalise a tensor from a file'
complete -c rmsnorm -n "not __fish_seen_subcommand_from $commands" -f -a check -d 'check every implementation on this machine'
complete -c rmsnorm -n "not __fish_seen_subcommand_from $commands" -f -a bench -d 'time them beside a copy'
complete -c rmsnorm -n "not __fish_seen_subcommand_from $commands" -f -a info -d 'version, processor, implementations, presets'
complete -c rmsnorm -n "not __fish_seen_subcommand_from $commands" -f -a help -d 'help about a command'
complete -c rmsnorm -n "__fish_seen_subcommand_from run check bench diff bisect info; and string match -q -- '-*' (commandline -ct)" -a '(__rmsnorm_options)'
complete -c rmsnorm -n "__fish_seen_subcommand_from run" -s p -l preset -x -a '(__rmsnorm_names presets)'
complete -c rmsnorm -n "__fish_seen_subcommand_from run check bench" -l impl -x -a '(__rmsnorm_names implementations)'
complete -c rmsnorm -n "__fish_seen_subcommand_from diff bisect" -l preset -x -a '(__rmsnorm_names presets)'
complete -c rmsnorm -n "__fish_seen_subcommand_from run diff bisect" -l dtype -x -a 'f32 f16 bf16 f64'
complete -c rmsnorm -n "__fish_seen_subcommand_from run" -l out-dtype -x -a 'f32 f16 bf16 f64'
complete -c rmsnorm -l color -x -a 'auto always never'
complete -c rmsnorm -n "__fish_seen_subcommand_from run check bench" -l device -x -a 'cpu cuda hip'
